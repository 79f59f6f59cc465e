"""Options of the HTTP server: addresses, TLS, logs, limits."""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec

from thalweg.options.option import Option

_option = partial(Option, group="Frontend")


def check_file(file: str) -> Iterator[str]:
    if not Path(file).is_file():
        yield f"no file {file!r}"


def check_folder(folder: str) -> Iterator[str]:
    if not Path(folder).is_dir():
        yield f"no folder {folder!r}"
    elif not os.access(folder, os.W_OK | os.X_OK):
        yield f"nothing can be written into {folder!r}"


def check_keys(keys: list[str]) -> Iterator[str]:
    if any(not k or k != k.strip() for k in keys):
        yield "a key must not be empty or begin or end with a space"


def check_prefix(path: str) -> Iterator[str]:
    if path and not path.startswith("/"):
        yield f"{path!r} must begin with a slash"


def check_names(hosts: list[str]) -> Iterator[str]:
    for host in hosts:
        if not host or set(host) & set("/:[]@ "):
            yield f"{host!r} is no name; give only names, without scheme and port, or *"


class HttpOptions(msgspec.Struct, kw_only=True, frozen=True):
    """Address, trust and limits of the HTTP server."""

    host: Annotated[str, _option("Address to bind; 127.0.0.1 answers this machine only, 0.0.0.0 every interface")] = "127.0.0.1"
    port: Annotated[int, _option("TCP port to bind", ge=0, le=65535, note="0: any free port")] = 8000
    uds: Annotated[str | None, _option("Bind a Unix socket instead of TCP")] = None
    headless: Annotated[bool, _option(
        "Host ranks of the engine that machine 0 runs (--nnodes, --node-rank), without an HTTP server", tier="scale",
    )] = False  # fmt: skip
    root_path: Annotated[str, _option("URL prefix behind a reverse proxy", check=check_prefix, none=True)] = ""
    api_key: Annotated[list[str], _option(
        "Bearer keys clients must send; several may be given. Other users of the machine can read a command line: prefer the "
        "environment variable THALWEG_API_KEY", check=check_keys,
    )] = []  # fmt: skip
    allowed_hosts: Annotated[list[str], _option(
        "Names clients may call the server by (Host); * for any. Default on loopback without a key: localhost and addresses; "
        "else any", tier="own", check=check_names,
    )] = []  # fmt: skip
    forwarded_allow_ips: Annotated[list[str], _option(
        "Reverse proxies (addresses, networks, *) trusted for X-Forwarded-For and -Proto; none by default",
        tier="own",
    )] = []  # fmt: skip
    allowed_origins: Annotated[
        list[str], _option("CORS: origins of pages that may read answers (JSON list); none by default", kind="json")
    ] = []
    allowed_methods: Annotated[list[str], _option("CORS: HTTP methods accepted (JSON list)", kind="json")] = msgspec.field(
        default_factory=lambda: ["*"]
    )
    allowed_headers: Annotated[list[str], _option("CORS: request headers accepted (JSON list)", kind="json")] = msgspec.field(
        default_factory=lambda: ["*"]
    )
    allow_credentials: Annotated[bool, _option("CORS: permit cookies and credentials")] = False
    middleware: Annotated[list[Any], _option("Import paths of ASGI middleware, outermost last; repeatable", repeats=True)] = []
    """In ServerSettings the loaded objects: classes that take the application, or functions (request, call_next)."""
    h11_max_incomplete_event_size: Annotated[
        int, _option("Bytes of a request's head; more are refused with 431", ge=1024, le=2**22, unit="bytes")
    ] = 16384
    h11_max_header_count: Annotated[int, _option("Header fields of a request; more are refused with 431", ge=8, le=4096)] = 64
    ssl_keyfile: Annotated[str | None, _option("TLS key file", check=check_file)] = None
    ssl_certfile: Annotated[str | None, _option("TLS certificate file", check=check_file)] = None
    ssl_ca_certs: Annotated[str | None, _option("CA bundle file", check=check_file)] = None
    ssl_cert_reqs: Annotated[
        int, _option("Client certificate policy (stdlib ssl value)", ge=0, le=2, note="0: none, 1: optional, 2: required")
    ] = 0
    ssl_ciphers: Annotated[str | None, _option("TLS 1.2 cipher suites")] = None
    enable_ssl_refresh: Annotated[bool, _option(
        "Reload certificate and key when their files change; open connections keep theirs",
    )] = False  # fmt: skip
    uvicorn_log_level: Annotated[
        str, _option("HTTP server log level", choices=("critical", "debug", "error", "info", "trace", "warning"))
    ] = "info"
    disable_uvicorn_access_log: Annotated[bool, _option("Silence HTTP access log lines")] = False
    disable_access_log_for_endpoints: Annotated[str | None, _option("Comma list of paths left out of access log")] = None
    disable_fastapi_docs: Annotated[bool, _option("Hide OpenAPI schema, Swagger and ReDoc pages")] = False
    webui: Annotated[bool, _option("A page to chat with at /, for browsers", tier="own")] = True
    log_config_file: Annotated[str | None, _option(
        "JSON of logging.config.dictConfig for the server process; it lists only changes", aliases=("--logging-config",),
    )] = None  # fmt: skip
    log_error_stack: Annotated[bool, _option("Log the stack where an error response was decided")] = False
    enable_log_requests: Annotated[bool, _option("Log each request's id, parameters and prompt", group="AsyncEngineArgs")] = (
        False
    )
    enable_log_outputs: Annotated[bool, _option(
        "Also log generated text, up to max-log-len characters; needs request logging",
    )] = False  # fmt: skip
    enable_log_deltas: Annotated[bool, _option("Log the pieces of a streamed answer at once; needs --enable-log-outputs")] = (
        False
    )
    max_log_len: Annotated[int | None, _option("Prompt characters or ids printed in logs", ge=0)] = None
    sse_keep_alive_interval: Annotated[
        float, _option("Comments in a silent stream, every so many seconds", ge=0, le=86400, unit="seconds", note="0: none")
    ] = 0.0
    shutdown_timeout: Annotated[int, _option(
        "Seconds open requests get to finish after SIGTERM or SIGINT; requests left then end with an "
        "error. A second signal does not wait", group="EngineArgs", ge=0,
    )] = 30  # fmt: skip
    max_body: Annotated[int | None, _option(
        "Bytes of one request body; more is refused before it is read. Default: 64 per token of the context, between 8 and 64 "
        "MiB", tier="own", kind="human-int", ge=1,
    )] = None  # fmt: skip
    max_queued_requests: Annotated[int | None, _option(
        "Prompts that may wait for the engine before new ones get 429 with Retry-After; default: 4 x max-num-seqs",
        aliases=("--max-num-queued-reqs",), ge=0,
    )] = None  # fmt: skip
    max_queued_tokens: Annotated[int, _option(
        "Prompt tokens that may wait for the engine before new requests get 429 with Retry-After",
        aliases=("--max-num-queued-tokens",), kind="human-int", ge=1,
    )] = 2**21  # fmt: skip
    responses_store_bytes: Annotated[int, _option(
        "Bytes of answers of /v1/responses kept for later turns, of all clients; 0 keeps none", tier="own", kind="human-int",
        ge=0, note="0 keeps nothing",
    )] = 64 * 2**20  # fmt: skip
    files_store_bytes: Annotated[int, _option(
        "Bytes of files of /v1/files of each API key, answers of batches included; 0 allows none", tier="own", kind="human-int",
        ge=0, note="0 keeps nothing",
    )] = 64 * 2**20  # fmt: skip
    files_directory: Annotated[str | None, _option(
        "Folder where files of /v1/files are kept while the server runs; default: memory", tier="own", check=check_folder,
    )] = None  # fmt: skip
    slow_client_timeout: Annotated[float, _option(
        "Seconds an answer waits for a client that reads nothing before the connection is cut", tier="own", ge=0.1,
        le=86400, unit="seconds",
    )] = 60.0  # fmt: skip
    header_timeout: Annotated[
        float, _option("Seconds a client has to send a request's header fields", tier="own", ge=0.1, le=86400, unit="seconds")
    ] = 10.0
    body_timeout: Annotated[
        float, _option("Seconds a client has to send a request's body", tier="own", ge=0.1, le=86400, unit="seconds")
    ] = 60.0
