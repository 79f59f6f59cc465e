"""`thalweg run-batch -i IN -o OUT`: a file of requests answered by an engine started for it, without a port."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import msgspec

from thalweg.cli import common, flags, serve
from thalweg.config import EngineArgs
from thalweg.errors import ConfigError
from thalweg.server.settings import ServerSettings

NO_PORT = frozenset({
    "host", "port", "uds", "root_path", "api_key", "allowed_hosts", "forwarded_allow_ips", "allowed_origins", "allowed_methods",
    "allowed_headers", "allow_credentials", "middleware", "h11_max_incomplete_event_size", "h11_max_header_count",
    "ssl_keyfile", "ssl_certfile", "ssl_ca_certs", "ssl_cert_reqs", "ssl_ciphers", "enable_ssl_refresh", "uvicorn_log_level",
    "disable_uvicorn_access_log", "disable_access_log_for_endpoints", "disable_fastapi_docs", "shutdown_timeout",
    "max_queued_requests", "max_queued_tokens", "slow_client_timeout", "header_timeout", "body_timeout",
    "enable_request_id_headers", "enable_server_load_tracking", "metrics_prefix",
})  # fmt: skip
"""Flags of a server's port, its clients and its queue. A batch has no such parts."""
UNBOUNDED = 1 << 40
AT_ONCE = 2
"""Lines under way, per sequence that the engine runs at once: enough that it never waits for the next."""


def run(words: list[str]) -> int:
    about = "Answer a file of requests in OpenAI's batch format."
    namespace = common.parse("run-batch", words, _arguments, about=about, server=True)
    given = flags.server_settings(namespace)
    if ports := sorted(NO_PORT & set(given)):
        raise ConfigError(
            *(f"--{n.replace('_', '-')}: is for a server, and a batch has no port; remove the flag" for n in ports)
        )
    if namespace.enable_metrics:
        raise ConfigError("--enable-metrics: a batch has no port; remove the flag, and see the log for the engine's state")
    if namespace.output_tmp_dir is not None:
        raise ConfigError("--output-tmp-dir: answers are written to the output file line by line; remove the flag")
    source, target = _files(namespace.input_file, namespace.output_file)
    args = common.engine_args(namespace, namespace.model_tag)
    settings = msgspec.structs.replace(serve.settings(given), max_queued_requests=UNBOUNDED, max_queued_tokens=UNBOUNDED)
    common.say_bundled(args, "--model MODEL")
    with source.open("rb") as lines, target.open("wb") as out:
        answered, failed = asyncio.run(_run(args, settings, lines, out))
    print(f"{answered} requests answered, {failed} with an error, in {target}", file=sys.stderr)
    return 0


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model_tag", nargs="?", metavar="MODEL", help="directory or hub id; also --model")
    parser.add_argument("-i", "--input-file", metavar="FILE", help="requests, a JSON object per line")
    parser.add_argument("-o", "--output-file", metavar="FILE", help="answers, in the same order")
    parser.add_argument("--output-tmp-dir", metavar="DIR", help="refused: nothing is staged")
    parser.add_argument("--enable-metrics", action="store_true", help="refused: a batch has no port")


def _files(source: str | None, target: str | None) -> tuple[Path, Path]:
    """Both, checked before a model is loaded. ConfigError."""
    if source is None or target is None:
        raise ConfigError(f"--{'input' if source is None else 'output'}-file: must be given")
    for flag, name in (("--input-file", source), ("--output-file", target)):
        if "://" in name:
            how = f"download it first: curl -o FILE {name}" if flag == "--input-file" else "upload the file afterwards"
            raise ConfigError(f"{flag}: {name!r:.200} is an address, and only local files are read and written; {how}")
    if not Path(source).is_file():
        raise ConfigError(f"--input-file: no file {source!r}")
    if not Path(target).parent.is_dir():
        raise ConfigError(f"--output-file: no directory {str(Path(target).parent)!r}")
    if Path(target).exists() and Path(source).samefile(target):
        raise ConfigError("--output-file: it is the input file too; name another")
    return Path(source), Path(target)


async def _run(args: EngineArgs, settings: ServerSettings, source: IO[bytes], target: IO[bytes]) -> tuple[int, int]:
    """(lines answered, answers with an error)."""
    from tqdm import tqdm

    from thalweg.async_llm import AsyncLLM
    from thalweg.server.app import make_app
    from thalweg.server.core.lines import in_order

    total = sum(1 for _ in _lines(source))
    source.seek(0)
    engine: Any = await AsyncLLM.start(args)
    failed = done = 0
    try:
        app = make_app(engine, settings)
        at_once = AT_ONCE * engine.config.scheduler.max_seqs
        with contextlib.closing(tqdm(total=total, desc="requests", unit="req", disable=None)) as bar:
            async with contextlib.aclosing(in_order(app.serving.lines, _lines(source), at_once)) as result:
                async for one in result:
                    target.write(one.line + b"\n")
                    target.flush()  # an answer survives a later failure
                    done, failed = done + 1, failed + (not one.ok)
                    bar.update()
    finally:
        await engine.shutdown()
    return done, failed


def _lines(file: IO[bytes]) -> Iterator[bytes]:
    """Lines with content."""
    return (line for line in file if line.strip())
