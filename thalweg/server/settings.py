"""What the HTTP server itself was told, checked once. Field names are the flags' names with `_` for `-`.

Only what this version honours is here: a flag that is in neither this class nor EngineArgs is refused by the command line.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import msgspec

from thalweg.errors import ConfigError
from thalweg.server.observe.buckets import problems_of
from thalweg.turns.choose import AUTO, NONE
from thalweg.turns.table import CALLS, REASONING, TEMPLATE

STRICT_LEVELS = ("off", "function", "parameter")
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""Values of reasoning_effort."""


class ServerSettings(msgspec.Struct, kw_only=True, frozen=True):
    """See `thalweg serve --help=Frontend` for the meaning of each field."""

    host: str = "127.0.0.1"
    port: int = 8000
    uds: str | None = None
    root_path: str = ""
    api_key: list[str] = []

    allowed_hosts: list[str] = []
    """Names clients may call this server by (the Host field). "*": any. Empty: see `hosts`."""
    forwarded_allow_ips: list[str] = []
    """Proxies whose X-Forwarded-For and X-Forwarded-Proto are believed. Empty: nobody's."""

    allowed_origins: list[str] = []
    """Web pages of other origins that a browser lets read answers. None unless told."""
    allowed_methods: list[str] = msgspec.field(default_factory=lambda: ["*"])
    allowed_headers: list[str] = msgspec.field(default_factory=lambda: ["*"])
    allow_credentials: bool = False

    middleware: list[Any] = []
    """ASGI middleware, outermost last: classes made with the application alone, or functions (request, call_next). The command
    line has loaded them from the import paths that were given."""
    h11_max_incomplete_event_size: int = 16384
    """Bytes of a request's head."""
    h11_max_header_count: int = 64

    ssl_keyfile: str | None = None
    ssl_certfile: str | None = None
    ssl_ca_certs: str | None = None
    ssl_cert_reqs: int = 0
    ssl_ciphers: str | None = None
    enable_ssl_refresh: bool = False
    """Read certificate and key again when their files change. Connections that are open keep theirs."""

    uvicorn_log_level: str = "info"
    disable_uvicorn_access_log: bool = False
    disable_access_log_for_endpoints: str | None = None
    disable_fastapi_docs: bool = False
    webui: bool = True
    """A page to chat with at `/`, for browsers."""
    log_config_file: str | None = None
    """JSON of logging.config.dictConfig, for this process and the web server in it. It names what it changes."""
    log_error_stack: bool = False
    """Log where an answer with an error was decided."""
    enable_log_requests: bool = False
    enable_log_outputs: bool = False
    """The text of every finished choice too, up to max_log_len characters."""
    enable_log_deltas: bool = False
    """Of a streamed answer each piece too, at once, where enable_log_outputs is set."""
    max_log_len: int | None = None
    sse_keep_alive_interval: float = 0.0
    """Seconds of silence of a stream after which a comment is sent, for proxies between. 0: none is."""
    shutdown_timeout: int = 30
    """Seconds open requests get to finish once the server is told to stop."""
    max_body: int | None = None
    """Bytes of one request body. More is refused before it is read. None: by the model's context."""
    max_queued_requests: int | None = None
    """Prompts that may wait for the engine. None: four times the sequences it runs at once."""
    max_queued_tokens: int = 2**21
    responses_store_bytes: int = 64 * 2**20
    """Bytes of responses that are kept, of all clients. 0 keeps none."""
    files_store_bytes: int = 64 * 2**20
    """Bytes of files of each key, batches' answers included. 0: there are no files."""
    files_directory: str | None = None
    """Where they are kept while the server runs. None: in memory."""
    slow_client_timeout: float = 60.0
    """Seconds an answer may wait for a client that takes nothing of it."""
    header_timeout: float = 10.0
    body_timeout: float = 60.0

    chat_template: str | None = None
    """The template itself: `serve` has read the file, if a file was named."""
    chat_template_content_format: str = "auto"
    default_chat_template_kwargs: dict[str, Any] | None = None
    trust_request_chat_template: bool = False
    response_role: str = "assistant"
    exclude_tools_when_tool_choice_none: bool = False
    enable_auto_tool_choice: bool = True
    """May clients leave it to the model whether it calls a tool?"""
    tool_call_parser: str | None = None
    """How calls are read out of the text: a name of the table of turn formats, auto, hf or none. None: auto."""
    tool_strict_level: str = "off"
    """Which calls of tool_choice auto are held to a grammar: off, those of tools that are strict; function, names and form of
    all; parameter, the schemas of all too."""
    tool_parser_plugin: str | None = None
    """A Python file, run at start, that registers more formats."""
    reasoning_parser: str | None = None
    reasoning_parser_plugin: str | None = None

    anthropic_disabled_thinking_effort: str | None = None
    """reasoning_effort of requests of the Messages API whose thinking is disabled, and that name none themselves."""

    server_dev_mode: bool = False
    """Routes for operators too (also THALWEG_SERVER_DEV_MODE=1): sleep, pause, profiles."""
    enable_tokenizer_info_endpoint: bool = False
    tokens_only: bool = False
    """No routes for texts: token ids in and out, and requests ended by name."""
    enable_request_id_headers: bool = False
    enable_prompt_tokens_details: bool = False
    enable_force_include_usage: bool = False
    enable_server_load_tracking: bool = False
    metrics_prefix: str = "both"
    """thalweg | vllm | both: what series are called in /metrics."""
    custom_histogram_buckets: dict[str, Any] | None = None
    """Upper bounds of buckets by family of histograms: {"request_latency": [0.1, 0.5, 1]}. See observe.buckets.FAMILIES."""
    enable_per_request_metrics: bool = False
    """Times of a request in its answer, where one prompt has one choice."""
    otlp_traces_endpoint: str | None = None
    """Collector of traces: http://host:4317 by gRPC, or a whole address over HTTP."""
    strict_requests: bool = False
    """Refuse request fields nobody here knows, rather than count them."""
    return_tokens_as_token_ids: bool = False
    fingerprint_mode: str = "full"
    fingerprint_value: str | None = None

    @property
    def hosts(self) -> frozenset[str] | None:
        """Names this server answers to, beside addresses. None: any. Only a server on loopback without a key needs to
        check names itself. Strangers cannot reach it, but a web page whose name is made to point here (DNS rebinding)
        lets a browser do so for it."""
        if self.allowed_hosts:
            return None if "*" in self.allowed_hosts else frozenset(h.lower() for h in self.allowed_hosts)
        if self.api_key or self.uds or not _is_loopback(self.host):
            return None
        return frozenset({"localhost", self.host.lower()})

    def __repr__(self) -> str:
        """Without the keys: settings end up in logs."""
        shown = {n: getattr(self, n) for n in self.__struct_fields__ if n != "api_key"}
        return f"ServerSettings({', '.join(f'{n}={v!r}' for n, v in shown.items())}, {len(self.api_key)} api keys)"

    def __post_init__(self) -> None:
        problems = list(self._problems())
        if problems:
            raise ConfigError(*problems)

    def _problems(self) -> Iterator[str]:
        if not 0 <= self.port <= 65535:
            yield f"--port: {self.port} is not between 0 and 65535 (0 takes a free one)"
        if self.shutdown_timeout < 0:
            yield f"--shutdown-timeout: {self.shutdown_timeout} must not be negative"
        for name in ("max_body", "max_queued_tokens"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                yield f"--{name.replace('_', '-')}: {getattr(self, name)} must be at least 1"
        for name in ("responses_store_bytes", "files_store_bytes"):
            if getattr(self, name) < 0:
                yield f"--{name.replace('_', '-')}: {getattr(self, name)} must not be negative (0 keeps nothing)"
        if self.files_directory is not None and not Path(self.files_directory).is_dir():
            yield f"--files-directory: no folder {self.files_directory!r}"
        elif self.files_directory is not None and not os.access(self.files_directory, os.W_OK | os.X_OK):
            yield f"--files-directory: nothing can be written into {self.files_directory!r}"
        if self.max_queued_requests is not None and self.max_queued_requests < 0:
            yield f"--max-queued-requests: {self.max_queued_requests} must not be negative"
        if not 0 <= self.sse_keep_alive_interval <= 86400:
            yield f"--sse-keep-alive-interval: {self.sse_keep_alive_interval:g} must be between 0 (none) and 86400 seconds"
        yield from (f"--custom-histogram-buckets: {p}" for p in problems_of(self.custom_histogram_buckets or {}))
        for name in ("slow_client_timeout", "header_timeout", "body_timeout"):
            if not 0.1 <= getattr(self, name) <= 86400:
                yield f"--{name.replace('_', '-')}: {getattr(self, name)} must be between 0.1 and 86400 seconds"
        if not 1024 <= self.h11_max_incomplete_event_size <= 2**22:
            size = self.h11_max_incomplete_event_size
            yield f"--h11-max-incomplete-event-size: {size} must be between 1024 and {2**22} bytes"
        if not 8 <= self.h11_max_header_count <= 4096:
            yield f"--h11-max-header-count: {self.h11_max_header_count} must be between 8 and 4096"
        if self.enable_log_outputs and not self.enable_log_requests:
            yield "--enable-log-outputs: needs --enable-log-requests too, which names the request an output belongs to"
        if self.max_log_len is not None and self.max_log_len < 0:
            yield f"--max-log-len: {self.max_log_len} must not be negative"
        if any(not k or k != k.strip() for k in self.api_key):
            yield "--api-key: a key must not be empty or begin or end with a space"
        if self.root_path and not self.root_path.startswith("/"):
            yield f"--root-path: {self.root_path!r} must begin with a slash"
        for host in self.allowed_hosts:
            if not host or set(host) & set("/:[]@ "):
                yield f"--allowed-hosts: {host!r} is no name; give names alone, without scheme and port, or *"
        if self.metrics_prefix not in ("thalweg", "vllm", "both"):
            yield f"--metrics-prefix: {self.metrics_prefix!r} is not one of thalweg, vllm, both"
        yield from self._turn_problems()
        if not self.response_role:
            yield "--response-role: must not be empty"
        if (self.fingerprint_mode == "custom") != (self.fingerprint_value is not None):
            yield "--fingerprint-value is needed with --fingerprint-mode custom, and only there"
        yield from self._tls_problems()

    def _turn_problems(self) -> Iterator[str]:
        if self.tool_strict_level not in STRICT_LEVELS:
            yield f"--tool-strict-level: {self.tool_strict_level!r} is not one of {', '.join(STRICT_LEVELS)}"
        if self.anthropic_disabled_thinking_effort not in (None, *EFFORTS):
            effort = self.anthropic_disabled_thinking_effort
            yield f"--anthropic-disabled-thinking-effort: {effort!r} is not one of {', '.join(EFFORTS)}"
        for name, known in (("tool_call_parser", CALLS), ("reasoning_parser", REASONING)):
            value = getattr(self, name)
            if value and value not in known and value not in (AUTO, NONE, TEMPLATE) and value != "GptOss":
                names = ", ".join(sorted({AUTO, NONE, TEMPLATE, *known}))
                yield f"--{name.replace('_', '-')}: {value!r} is not one of {names}"

    def _tls_problems(self) -> Iterator[str]:
        for name in ("ssl_keyfile", "ssl_certfile", "ssl_ca_certs"):
            value = getattr(self, name)
            if value is not None and not Path(value).is_file():
                yield f"--{name.replace('_', '-')}: no file {value!r}"
        if self.ssl_keyfile and not self.ssl_certfile:
            yield "--ssl-keyfile: needs --ssl-certfile too"
        if self.ssl_cert_reqs not in tuple(ssl.VerifyMode):
            yield f"--ssl-cert-reqs: {self.ssl_cert_reqs} is not one of 0 (none), 1 (optional), 2 (required)"
        if self.enable_ssl_refresh and not self.ssl_certfile:
            yield "--enable-ssl-refresh: needs --ssl-certfile"
        if self.ssl_cert_reqs and not self.ssl_ca_certs:
            yield "--ssl-cert-reqs: asking clients for certificates needs --ssl-ca-certs"


def _is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
