"""From the user's store configuration to a connection with it, and to the keys by which blocks are found."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TypeVar

from thalweg.config import EngineArgs
from thalweg.engine.control.cache.prefix import HashFn, keyed_hash
from thalweg.engine.control.executor import Executor
from thalweg.engine.control.store.base import Store
from thalweg.engine.control.store.mover import ExecutorMover
from thalweg.engine.control.store.transfers import StoreConnection
from thalweg.errors import ConfigError, ThalwegError
from thalweg.host.secrets import key_secret
from thalweg.kv_stores import load_store
from thalweg.options.kv_store import transfer

T = TypeVar("T")


def check_store(args: EngineArgs) -> None:
    """Check a store's configuration before anything is loaded. ConfigError names the field."""
    secret, config = key_secret(args.kv_key_secret), transfer(args)
    if config is None:
        return
    store: type[Store] = load_store(config.kv_connector)
    if problems := _call(config.kv_connector, lambda: store.check(config.options)):
        raise ConfigError(*(f"kv_transfer_config: kv_connector_extra_config: {p}" for p in problems))
    if store.shared and secret is None:
        raise ConfigError(
            f"kv_transfer_config: {config.kv_connector}: engines that share a store need one secret for its keys: give each "
            "--kv-key-secret FILE, or THALWEG_KV_KEY_SECRET"
        )


def key_hash(args: EngineArgs) -> HashFn | None:
    """The hash that gives blocks their keys. None: a hash with a random secret of this process. ConfigError."""
    secret = key_secret(args.kv_key_secret)
    if secret is None:
        return None
    key = hashlib.blake2b(secret, digest_size=32, person=b"thalweg kv keys").digest()
    return keyed_hash(key, args.prefix_caching_hash_algo)


def connect(args: EngineArgs, executor: Executor) -> StoreConnection | None:
    """Open the configured store. None: none is configured. ConfigError."""
    config = transfer(args)
    if config is None:
        return None
    check_store(args)
    store = _call(config.kv_connector, lambda: load_store(config.kv_connector).open(config.options))
    return StoreConnection(store, ExecutorMover(executor), config.load_timeout, role=config.kv_role)


def _call(connector: str, call: Callable[[], T]) -> T:
    """The result of a call of a store. ConfigError names the store if it raises anything else."""
    try:
        return call()
    except ThalwegError:
        raise
    except Exception as e:  # packages write stores
        raise ConfigError(f"kv_transfer_config: {connector} cannot start: {type(e).__name__}: {e}") from e
