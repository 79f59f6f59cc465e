"""Secrets that several engines share. They are read where they are used, and are in no configuration, message or log."""

from __future__ import annotations

from pathlib import Path

from thalweg.errors import ConfigError
from thalweg.host import envs

LEAST_BYTES, MOST_BYTES = 16, 4096


def key_secret(file: str | None) -> bytes | None:
    """The secret that keys of KV blocks are made with: the file's contents, less white space around them, or else those
    of THALWEG_KV_KEY_SECRET. None: neither is given. ConfigError for one that cannot be read, or is too short or too long."""
    return _read_secret("kv_key_secret", file, "THALWEG_KV_KEY_SECRET", envs.kv_key_secret())


def node_secret(file: str | None) -> bytes | None:
    """The secret of the machines of one engine, as `key_secret`, from the file or else from THALWEG_NODE_SECRET."""
    return _read_secret("node_secret", file, "THALWEG_NODE_SECRET", envs.node_secret())


def read_secret(name: str, file: str) -> bytes:
    """The secret in a file that the option `name` gives. ConfigError names both."""
    secret = _read_secret(name, file, "", None)
    assert secret is not None, "a file is given"
    return secret


def _read_secret(name: str, file: str | None, variable: str, value: str | None) -> bytes | None:
    where, secret = f"{name}: {file}", b""
    if file is not None:
        try:
            with Path(file).open("rb") as f:
                secret = f.read(MOST_BYTES + 1).strip()
        except OSError as e:
            raise ConfigError(f"{where}: cannot be read: {e.strerror or e}") from None
    elif value is None:
        return None
    else:  # a variable set to nothing is too short: a template that lost its value must not open the port
        where, secret = variable, value.encode("utf-8", "surrogateescape").strip()
    if len(secret) < LEAST_BYTES:
        raise ConfigError(f"{where}: a secret of {len(secret)} bytes is too short: make one of {LEAST_BYTES} or more at random")
    if len(secret) > MOST_BYTES:
        raise ConfigError(f"{where}: a secret has at most {MOST_BYTES} bytes")
    return secret
