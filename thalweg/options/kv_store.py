"""Options of KV stores: KV blocks beyond the cache of one engine."""

from collections.abc import Iterable
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from thalweg.errors import ConfigError
from thalweg.kv_stores import LMCACHE, find_problem, load_store
from thalweg.options.cache import CacheOptions
from thalweg.options.option import Option, Rules

TIMEOUT = "load_timeout"
MOST_GIB = 1 << 20
_option = partial(Option, group="CacheConfig")


class TransferConfig(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """kv_transfer_config: the store that keeps KV blocks, and its options."""

    kv_connector: str
    """A name of `thalweg.kv_stores`."""
    kv_role: Literal["kv_both", "kv_producer", "kv_consumer"] = "kv_both"
    """kv_producer only saves blocks, as a server of prompts does. kv_consumer only loads them."""
    kv_load_failure_policy: Literal["recompute"] = "recompute"
    """Blocks that fail to load are computed."""
    kv_connector_extra_config: dict[str, Any] = {}
    """Options of the store, and `load_timeout`."""

    @property
    def load_timeout(self) -> float:
        """Seconds that a request waits for a prefix, at most."""
        return float(self.kv_connector_extra_config.get(TIMEOUT, 10))

    @property
    def options(self) -> dict[str, Any]:
        """Options for the store itself."""
        return {k: v for k, v in self.kv_connector_extra_config.items() if k != TIMEOUT}


def check_transfer(args: "KvStoreOptions") -> Iterable[str]:
    if transfer(args) is not None and not args.enable_prefix_caching:
        yield "kv_transfer_config: requires enable_prefix_caching, because the prefix cache finds stored blocks"


class KvStoreOptions(CacheOptions, kw_only=True, frozen=True):
    """The KV store behind the cache, and the keys of its blocks."""

    kv_transfer_config: Annotated[
        dict[str, Any] | None,
        _option(
            'Store of KV blocks beyond the cache: {"kv_connector": "OffloadingConnector", "kv_connector_extra_config": '
            '{"cpu_bytes_to_use": 8589934592}}',
            group="General", tier="scale",
        ),
    ] = None  # fmt: skip
    kv_offloading_size: Annotated[
        float | None, _option("GiB of host memory for KV blocks: short for OffloadingConnector", gt=0, le=MOST_GIB)
    ] = None
    kv_offloading_backend: Annotated[
        str, _option("Store of kv_offloading_size", choices=("native",), refused={"lmcache": LMCACHE})
    ] = "native"
    kv_key_secret: Annotated[
        str | None,
        _option(
            "File with the secret of the keys of KV blocks, 16 bytes or more, equal for engines that share a store; "
            "default: THALWEG_KV_KEY_SECRET, or drawn by the process",
            tier="own",
        ),
    ] = None

    RULES: ClassVar[Rules] = (check_transfer,)


def transfer(args: "KvStoreOptions") -> TransferConfig | None:
    """The requested store. None: no store. ConfigError lists all problems, except of the store's own options."""
    settings = args.kv_transfer_config
    if args.kv_offloading_size is not None:
        if settings:
            raise ConfigError("kv_offloading_size: is short for a kv_transfer_config; give only one")
        if not 0 < args.kv_offloading_size <= MOST_GIB:
            return None  # its bounds refuse it
        options = {"cpu_bytes_to_use": int(args.kv_offloading_size * (1 << 30))}
        settings = {"kv_connector": "OffloadingConnector", "kv_connector_extra_config": options}
    if not settings:
        return None
    try:
        result = msgspec.convert(settings, TransferConfig)
    except msgspec.ValidationError as e:
        known = ", ".join(TransferConfig.__struct_fields__)
        raise ConfigError(f"kv_transfer_config: {e}; this version has {known}, and the policy recompute") from None
    if (problem := find_problem(result.kv_connector)) is not None:
        raise ConfigError(f"kv_transfer_config: kv_connector: {problem}")
    timeout = result.kv_connector_extra_config.get(TIMEOUT, 1)
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout <= 3600:
        raise ConfigError(f"kv_transfer_config: {TIMEOUT}: must be seconds above 0 and at most 3600, not {timeout!r:.40}")
    return result


def shares_store(args: "KvStoreOptions") -> bool:
    """Do other engines read the blocks of this one, and it theirs?"""
    config = transfer(args)
    return config is not None and bool(load_store(config.kv_connector).shared)
