"""A store in Redis or Valkey: `kv_connector` "redis" or "valkey". Engines of several machines share it.

The client library is optional: `pip install 'thalweg[redis]'`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from thalweg.engine.control.store.base import Store, check_seconds, find_unknown
from thalweg.errors import ConfigError

URL, PASSWORD, PREFIX, TTL, TIMEOUT = "url", "password_file", "prefix", "ttl", "timeout"
OPTIONS = (URL, PASSWORD, PREFIX, TTL, TIMEOUT)
ABSENT = "the client is not installed: pip install 'thalweg[redis]'"
SCHEMES = ("redis", "rediss", "unix")
AT_ONCE = 64
"""Blocks of one command: bounds the answer that the client holds."""


class RedisStore(Store):
    """One string per block. The server's own `maxmemory` bounds them: use `maxmemory-policy allkeys-lru`."""

    shared = True

    def __init__(self, client: Any, prefix: bytes, ttl: int | None) -> None:
        """client: a `redis.Redis`. ttl: seconds until a block ends after it was saved. None: none."""
        self._client, self._prefix, self._ttl = client, prefix, ttl

    @classmethod
    def check(cls, options: Mapping[str, Any]) -> list[str]:
        problems = find_unknown(options, OPTIONS)
        url, prefix, ttl = options.get(URL), options.get(PREFIX, ""), options.get(TTL)
        parts = urlsplit(url) if isinstance(url, str) else None
        if parts is None or parts.scheme not in SCHEMES or not (parts.netloc or parts.path):
            problems.append(f"{URL}: must be such as redis://host:6379/0, not {'an address' if parts else repr(url)[:40]}")
        elif parts.password is not None:
            problems.append(f"{URL}: must have no password, which logs would show: write it to a file, and give {PASSWORD}")
        if not isinstance(prefix, str):
            problems.append(f"{PREFIX}: must be text, not {prefix!r:.40}")
        if ttl is not None and (type(ttl) is not int or ttl < 1):
            problems.append(f"{TTL}: must be a number of seconds above 0, not {ttl!r:.40}")
        return problems + check_seconds(options, TIMEOUT)

    @classmethod
    def open(cls, options: Mapping[str, Any]) -> Self:
        if problems := cls.check(options):
            raise ConfigError(*problems)
        try:
            from redis import Redis, RedisError
        except ImportError:
            raise ConfigError(f"kv_transfer_config: kv_connector: {ABSENT}") from None
        timeout = float(options.get(TIMEOUT, 2.0))
        client = Redis.from_url(
            options[URL], password=_read_password(options.get(PASSWORD)), socket_timeout=timeout, socket_connect_timeout=timeout
        )
        try:
            client.ping()
        except RedisError as e:
            raise ConfigError(f"kv_transfer_config: {URL}: no server answers: {e}") from None
        return cls(client, str(options.get(PREFIX, "thalweg:")).encode(), options.get(TTL))

    def lookup(self, keys: Sequence[bytes]) -> list[bool]:
        with self._client.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.exists(self._prefix + key)
            return [bool(found) for found in pipe.execute()]

    def load(self, keys: Sequence[bytes]) -> list[bytes | None]:
        found: list[bytes | None] = []
        for at in range(0, len(keys), AT_ONCE):
            found += self._client.mget([self._prefix + key for key in keys[at : at + AT_ONCE]])
        return found

    def save(self, keys: Sequence[bytes], blocks: Sequence[bytes]) -> None:
        for key, block in zip(keys, blocks, strict=True):
            self._client.set(self._prefix + key, block, ex=self._ttl, nx=True)

    def discard(self, keys: Sequence[bytes]) -> None:
        self._client.delete(*(self._prefix + key for key in keys))

    def close(self) -> None:
        self._client.close()


def _read_password(file: Any) -> str | None:
    """None: no file is given. ConfigError."""
    if file is None:
        return None
    try:
        return Path(file).read_text(encoding="utf-8").strip()
    except (OSError, TypeError, UnicodeDecodeError) as e:
        raise ConfigError(f"kv_transfer_config: {PASSWORD}: {file!r:.80} cannot be read: {e}") from None
