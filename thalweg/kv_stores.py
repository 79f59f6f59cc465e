"""The open list of stores that keep KV blocks, and the check of a `kv_connector`. Imports no store until one is asked for.

An installed package adds one with an entry point of the group `thalweg.kv_stores` ("NAME = package.module:Class"). The class
is an `engine.control.store.base.Store`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thalweg.errors import ConfigError
from thalweg.plugins import PluginRegistry

_HOST = "thalweg.engine.control.store.host:HostStore"
_DISK = "thalweg.engine.control.store.disk:DiskStore"
_REDIS = "thalweg.engine.control.store.redis:RedisStore"
_NIXL = "thalweg.engine.control.store.nixl:NixlStore"
_LMCACHE = "thalweg.engine.control.store.lmcache:LMCacheStore"
_MOONCAKE = "thalweg.engine.control.store.mooncake:MooncakeStore"
STORES: Mapping[str, str] = {
    "host": _HOST,
    "OffloadingConnector": _HOST,
    "SimpleCPUOffloadConnector": _HOST,
    "disk": _DISK,
    "ExampleConnector": _DISK,
    "SharedStorageConnector": _DISK,
    "redis": _REDIS,
    "valkey": _REDIS,
    "nixl": _NIXL,
    "NixlConnector": _NIXL,
    "lmcache": _LMCACHE,
    "LMCacheConnectorV1": _LMCACHE,
    "LMCacheMPConnector": _LMCACHE,
    "mooncake": _MOONCAKE,
    "MooncakeStoreConnector": _MOONCAKE,
}
"""Names, vLLM's for the same purpose too -> classes."""
LMCACHE = (
    "its server has the memory: start lmcache server --l1-size-gb GIB, and give --kv-transfer-config "
    '\'{"kv_connector": "LMCacheMPConnector"}\' (docs/kv-stores.md)'
)
_BETWEEN = (
    "it hands blocks from engine to engine; engines here share a store: disk on one machine, redis on several, or "
    "NixlConnector, with which they read from each other"
)
_REMOTE = "engines of several machines share a redis store"
INSTEAD: Mapping[str, str] = {
    "LMCache": "LMCacheMPConnector keeps blocks in LMCache's server",
    "Nixl": "NixlConnector reads blocks of other engines",
    "P2p": _BETWEEN,
    "MoRIIO": _BETWEEN,
    "Mooncake": "it hands blocks from engine to engine; MooncakeStoreConnector shares them",
    "HF3FS": "a mounted file system is a disk store",
    "FlexKV": _REMOTE,
    "Multi": "one store is configured; disk and redis keep more than host memory does",
}
"""Begin of a connector's name in vLLM -> the alternative."""
_LIST = PluginRegistry("thalweg.kv_stores", STORES)


def find_problem(name: str) -> str | None:
    """Why no store has this name, in words. None: one has it."""
    if name in _LIST:
        return None
    answer = next((f"; {words}" for begin, words in INSTEAD.items() if name.startswith(begin)), "")
    return f"{name!r:.60} is not here; this version has {', '.join(_LIST.names())}{answer}"


def load_store(name: str) -> Any:
    """The class of a store. ConfigError if `find_problem` finds one. UnsupportedModelError if a package's class cannot be
    imported."""
    if (problem := find_problem(name)) is not None:
        raise ConfigError(f"kv_transfer_config: kv_connector: {problem}")
    return _LIST.load(name)


def add_store(name: str, target: str) -> None:
    """Add a store for this process only, replacing an equal name. target: "module:class"."""
    _LIST.add(name, target)
