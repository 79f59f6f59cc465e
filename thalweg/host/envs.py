"""Environment variables: the only file that reads them. Each function reads at call time, so nothing is frozen at
import.

Knows names, types and defaults. Meaning is up to the caller. A malformed value is a ConfigError that names the variable. vLLM's
variables: `TWINS` are honoured under both names, ours first. `foreign` names the others.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from thalweg.errors import ConfigError

TWINS = {
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "THALWEG_ALLOW_RUNTIME_LORA_UPDATING",
    "VLLM_API_KEY": "THALWEG_API_KEY",
    "VLLM_BATCH_INVARIANT": "THALWEG_BATCH_INVARIANT",
    "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "THALWEG_HTTP_TIMEOUT_KEEP_ALIVE",
    "VLLM_LOGGING_LEVEL": "THALWEG_LOGGING_LEVEL",
    "VLLM_LOG_STATS_INTERVAL": "THALWEG_LOG_STATS_INTERVAL",
    "VLLM_MAX_AUDIO_CLIP_FILESIZE_MB": "THALWEG_MAX_AUDIO_CLIP_FILESIZE_MB",
    "VLLM_MAX_AUDIO_DECODE_DURATION_S": "THALWEG_MAX_AUDIO_DECODE_DURATION_S",
    "VLLM_SERVER_DEV_MODE": "THALWEG_SERVER_DEV_MODE",
    "VLLM_TORCH_PROFILER_DIR": "THALWEG_TORCH_PROFILER_DIR",
}
"""vLLM's name: ours."""
AS_IT_IS = ("VLLM_DO_NOT_TRACK", "VLLM_NO_USAGE_STATS")
"""Variables without effect: usage is never reported."""
OF_RANKS = ("THALWEG_", "HF_", "PYTHONPATH")
"""How names of variables begin that ranks on other machines get, besides those of their platform."""
INSTEAD = {
    "VLLM_ATTENTION_BACKEND": "the device chooses; thalweg plan shows its choice",
    "VLLM_CPU_KVCACHE_SPACE": "--kv-cache-memory-bytes, in bytes",
    "VLLM_CPU_NUM_OF_RESERVED_CPU": "--threads",
    "VLLM_CPU_OMP_THREADS_BIND": "--threads, and taskset",
    "VLLM_DEBUG_LOG_API_SERVER_RESPONSE": "--enable-log-requests --enable-log-outputs",
    "VLLM_ENABLE_RESPONSES_API_STORE": "--responses-store-bytes; without it, 64 MiB are kept",
    "VLLM_ENGINE_ITERATION_TIMEOUT_S": "--hang-timeout",
    "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "--hang-timeout",
    "VLLM_LORA_RESOLVER_CACHE_DIR": "--lora-resolver folder --lora-root DIR",
    "VLLM_PP_LAYER_PARTITION": "--pipeline-layer-partition",
    "VLLM_TARGET_DEVICE": "--device",
}
"""Unsupported variable -> its replacement, where one exists."""


def foreign() -> str | None:
    """One sentence naming every unsupported VLLM_* variable in the environment, without its value. None: all are supported."""
    names = sorted(n for n, v in os.environ.items() if n.startswith("VLLM_") and v and n not in TWINS and n not in AS_IT_IS)
    if not names:
        return None
    listed = ", ".join(f"{n} (use {INSTEAD[n]})" if n in INSTEAD else n for n in names)
    return f"set in the environment, and without effect here: {listed}"


def api_keys() -> list[str]:
    """THALWEG_API_KEY: key clients must send when `--api-key` is not given. Unset or empty: no key."""
    value = _get("THALWEG_API_KEY")[1]
    return [value] if value else []


def batch_invariant() -> bool | None:
    """THALWEG_BATCH_INVARIANT: 1 is `--batch-invariant` where neither form of that flag is given. 0, empty: not said."""
    return True if _switch("THALWEG_BATCH_INVARIANT") else None


def kv_key_secret() -> str | None:
    """THALWEG_KV_KEY_SECRET: the secret itself, used without `--kv-key-secret` (a file). None: not set."""
    return os.environ.get("THALWEG_KV_KEY_SECRET")


def node_secret() -> str | None:
    """THALWEG_NODE_SECRET: the secret itself, used without `--node-secret` (a file). None: not set."""
    return os.environ.get("THALWEG_NODE_SECRET")


def dev_mode() -> bool:
    """THALWEG_SERVER_DEV_MODE: 1 gives the server its routes for operators (sleep, pause, profiles)."""
    return _switch("THALWEG_SERVER_DEV_MODE")


def adapter_routes() -> bool:
    """THALWEG_ALLOW_RUNTIME_LORA_UPDATING: 1 or true gives the server its routes that load and unload adapters."""
    name, value = _get("THALWEG_ALLOW_RUNTIME_LORA_UPDATING")
    if value.lower() not in ("", "0", "1", "false", "true"):
        raise ConfigError(f"{name}: {value!r} must be true or false")
    return value.lower() in ("1", "true")


def profiler_folder() -> str:
    """THALWEG_TORCH_PROFILER_DIR: `--profiler-config` with torch's profiler and this folder, where that flag is not given."""
    return _get("THALWEG_TORCH_PROFILER_DIR")[1]


def engine_fields() -> dict[str, Any]:
    """Fields of EngineArgs that the environment gives, where the caller does not."""
    result: dict[str, Any] = {}
    if (invariant := batch_invariant()) is not None:
        result["batch_invariant"] = invariant
    if folder := profiler_folder():
        result["profiler_config"] = {"profiler": "torch", "torch_profiler_dir": folder}
    return result


def client_api_key() -> str | None:
    """OPENAI_API_KEY: key that `thalweg chat --url` sends when `--api-key` is not given."""
    return os.environ.get("OPENAI_API_KEY") or None


def log_level() -> str:
    """THALWEG_LOGGING_LEVEL: level of thalweg's own log lines. Default INFO."""
    name, text = _get("THALWEG_LOGGING_LEVEL")
    value = text.upper() or "INFO"
    if value not in ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"):
        raise ConfigError(f"{name}: {value!r} is not a level; use DEBUG, INFO, WARNING, ERROR or CRITICAL")
    return value


def set_log_level(level: str) -> None:
    """THALWEG_LOGGING_LEVEL for processes that this one starts: `--log-level`."""
    os.environ["THALWEG_LOGGING_LEVEL"] = level.upper()


@dataclass(frozen=True, slots=True)
class LaunchedProcess:
    """The place of this process among those that a launcher started."""

    rank: int
    local_rank: int
    world: int
    local_world: int
    host: str
    port: int
    has_store: bool
    """The launcher itself listens at the address."""


def read_launcher() -> LaunchedProcess:
    """RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as torchrun sets them. ConfigError names the
    first that is missing or wrong."""
    world = _of_launcher("WORLD_SIZE", 1)
    local_world = _of_launcher("LOCAL_WORLD_SIZE", 1, world + 1)
    rank, local_rank = _of_launcher("RANK", 0, world), _of_launcher("LOCAL_RANK", 0, local_world)
    host, port = os.environ.get("MASTER_ADDR", ""), _of_launcher("MASTER_PORT", 1, 65536)
    if not host:
        raise ConfigError("MASTER_ADDR is not set: external_launcher needs a program started by torchrun")
    return LaunchedProcess(
        rank, local_rank, world, local_world, host, port, os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    )


def _of_launcher(name: str, least: int, end: int = 1 << 20) -> int:
    text = os.environ.get(name, "")
    if not text:
        raise ConfigError(f"{name} is not set: external_launcher needs a program started by torchrun")
    if not text.isdecimal() or not least <= int(text) < end:
        raise ConfigError(f"{name}: {text!r} must be a number from {least} to {end - 1}")
    return int(text)


def set_unset(values: Mapping[str, str]) -> None:
    """Variables of libraries, for this process, where the user has not set them."""
    for name, value in values.items():
        os.environ.setdefault(name, value)


def keep_alive_seconds() -> int:
    """THALWEG_HTTP_TIMEOUT_KEEP_ALIVE: seconds an idle HTTP connection stays open. Default 75, longer than pools of clients and
    proxies keep one (httpx 5, aiohttp 15, load balancers 60): the side that may send must close first."""
    return int(_number("THALWEG_HTTP_TIMEOUT_KEEP_ALIVE", 75, 0))


def forwarded_allow_ips() -> list[str]:
    """FORWARDED_ALLOW_IPS: trusted proxies for X-Forwarded-* fields without `--forwarded-allow-ips`, as uvicorn reads it. * is
    any. Default: none."""
    return [a.strip() for a in os.environ.get("FORWARDED_ALLOW_IPS", "").split(",") if a.strip()]


def log_stats_seconds() -> float:
    """THALWEG_LOG_STATS_INTERVAL: seconds between two statistics lines. Default 10."""
    return _number("THALWEG_LOG_STATS_INTERVAL", 10, 0.1)


def audio_file_megabytes() -> float:
    """THALWEG_MAX_AUDIO_CLIP_FILESIZE_MB: largest audio file of a request, in MB. Default 25."""
    return _number("THALWEG_MAX_AUDIO_CLIP_FILESIZE_MB", 25, 0.001, 200)


def upload_bytes() -> int:
    """Largest file of a form, in bytes."""
    return int(audio_file_megabytes() * 2**20)


def audio_seconds() -> float:
    """THALWEG_MAX_AUDIO_DECODE_DURATION_S: longest audio of a request, in seconds. Default 600."""
    return _number("THALWEG_MAX_AUDIO_DECODE_DURATION_S", 600, 0.1, 3600)


def otlp_protocol() -> str:
    """OTEL_EXPORTER_OTLP_TRACES_PROTOCOL, or OTEL_EXPORTER_OTLP_PROTOCOL: how traces are sent. Default grpc."""
    for name in ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        if value := os.environ.get(name):
            if value not in ("grpc", "http/protobuf"):
                raise ConfigError(f"{name}: {value!r} is neither grpc nor http/protobuf")
            return value
    return "grpc"


def otel_service_name() -> str:
    """OTEL_SERVICE_NAME: name of this service in traces. The library reads it itself."""
    return os.environ.get("OTEL_SERVICE_NAME", "")


def failpoints() -> str:
    """THALWEG_FAILPOINTS: faults to inject, for tests (see thalweg.host.failpoints). Default: none."""
    return os.environ.get("THALWEG_FAILPOINTS", "")


def startup_marks() -> str:
    """THALWEG_STARTUP_MARKS: file to which each process adds when it passed which point of its start. Default: none."""
    return os.environ.get("THALWEG_STARTUP_MARKS", "")


def with_startup_marks(path: str) -> dict[str, str]:
    """The environment of a child, with marks of its startup written to `path`."""
    return {**os.environ, "THALWEG_STARTUP_MARKS": path}


def everything() -> dict[str, str]:
    """The whole environment, for a program that replaces this one."""
    return dict(os.environ)


def without_api_keys() -> dict[str, str]:
    """The environment of a child that serves no client: without any variable named *API_KEY."""
    return {k: v for k, v in os.environ.items() if not k.upper().endswith("API_KEY")}


def of_ranks(prefixes: tuple[str, ...]) -> dict[str, str]:
    """Variables that ranks on other machines need too, also those that begin with `prefixes`. No keys and secrets."""
    given = without_api_keys().items()
    return {k: v for k, v in given if k.startswith(OF_RANKS + prefixes) and not k.endswith(("TOKEN", "SECRET"))}


def _switch(ours: str) -> bool:
    name, value = _get(ours)
    if value not in ("", "0", "1"):
        raise ConfigError(f"{name}: {value!r} must be 0 or 1")
    return value == "1"


def _get(name: str) -> tuple[str, str]:
    """(the name it was set under, its value) of a variable of ours or of its twin. "" where neither is set."""
    for n in (name, *(theirs for theirs, ours in TWINS.items() if ours == name)):
        if value := os.environ.get(n):
            return n, value
    return name, ""


def _number(ours: str, default: float, least: float, most: float = 1e9) -> float:
    name, text = _get(ours)
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        raise ConfigError(f"{name}: {text!r} is not a number") from None
    if not least <= value < most:
        raise ConfigError(f"{name}: {text} must be between {least:g} and {most:g}")
    return value
