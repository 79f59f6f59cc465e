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
STORES: Mapping[str, str] = {"OffloadingConnector": _HOST, "host": _HOST}
LMCACHE = "LMCache is written against another engine's classes; the store in host memory is OffloadingConnector"
_LIST = PluginRegistry("thalweg.kv_stores", STORES)


def find_problem(name: str) -> str | None:
    """Why no store has this name, in words. None: one has it."""
    if name in _LIST:
        return None
    answer = f"; {LMCACHE}" if name.startswith("LMCache") else ""
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
