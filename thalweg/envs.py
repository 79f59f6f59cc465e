"""Environment variables: the only file that reads them. Each function reads at call time, so nothing is frozen at import.

Knows names, types and defaults; what a value means is the caller's. A malformed value is a ConfigError that names the variable.
"""

from __future__ import annotations

import os

from thalweg.errors import ConfigError


def api_keys() -> list[str]:
    """THALWEG_API_KEY: key clients must send when `--api-key` is not given. Unset or empty: no key."""
    value = os.environ.get("THALWEG_API_KEY", "")
    return [value] if value else []


def client_api_key() -> str | None:
    """OPENAI_API_KEY: key that `thalweg chat --url` sends when `--api-key` is not given."""
    return os.environ.get("OPENAI_API_KEY") or None


def log_level() -> str:
    """THALWEG_LOGGING_LEVEL: level of thalweg's own log lines. Default INFO."""
    value = os.environ.get("THALWEG_LOGGING_LEVEL", "INFO").upper()
    if value not in ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"):
        raise ConfigError(f"THALWEG_LOGGING_LEVEL: {value!r} is not a level; use DEBUG, INFO, WARNING, ERROR or CRITICAL")
    return value


def keep_alive_seconds() -> int:
    """THALWEG_HTTP_TIMEOUT_KEEP_ALIVE: seconds an idle HTTP connection stays open. Default 5."""
    return int(_number("THALWEG_HTTP_TIMEOUT_KEEP_ALIVE", 5, 0))


def log_stats_seconds() -> float:
    """THALWEG_LOG_STATS_INTERVAL: seconds between two statistics lines. Default 10."""
    return _number("THALWEG_LOG_STATS_INTERVAL", 10, 0.1)


def failpoints() -> str:
    """THALWEG_FAILPOINTS: faults to inject, for tests (see thalweg.failpoints). Default: none."""
    return os.environ.get("THALWEG_FAILPOINTS", "")


def startup_marks() -> str:
    """THALWEG_STARTUP_MARKS: file to which each process adds when it passed which point of its start. Default: none."""
    return os.environ.get("THALWEG_STARTUP_MARKS", "")


def with_startup_marks(path: str) -> dict[str, str]:
    """The environment of a child whose start is to be measured."""
    return {**os.environ, "THALWEG_STARTUP_MARKS": path}


def without_api_keys() -> dict[str, str]:
    """The environment of a child that serves no client: without any variable named *API_KEY."""
    return {k: v for k, v in os.environ.items() if not k.upper().endswith("API_KEY")}


def _number(name: str, default: float, least: float) -> float:
    text = os.environ.get(name)
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        raise ConfigError(f"{name}: {text!r} is not a number") from None
    if not least <= value < 1e9:
        raise ConfigError(f"{name}: {text} must be between {least:g} and 1e9")
    return value
