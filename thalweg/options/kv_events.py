"""Options of KV events: news of the prefix cache for routers."""

from collections.abc import Iterable
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from thalweg.errors import ConfigError
from thalweg.options.kv_store import KvStoreOptions
from thalweg.options.option import Option, Rules

_option = partial(Option, group="General")
_Count = Annotated[int, msgspec.Meta(ge=1, le=10_000_000)]


class KvEventsConfig(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """kv_events_config, with vLLM's field names."""

    enable_kv_cache_events: bool = False
    publisher: Literal["zmq", "null"] | None = None
    """None: zmq."""
    endpoint: str = "tcp://127.0.0.1:5557"
    """Address of the PUB socket. Engine i of several adds i to the port."""
    replay_endpoint: str | None = None
    """Address of the ROUTER socket that sends past batches again. None: no such socket."""
    buffer_steps: _Count = 10_000
    """Batches kept for replay."""
    hwm: _Count = 100_000
    """Batches queued for a slow subscriber. It loses further ones."""
    max_queue_size: _Count = 100_000
    """Batches that wait to be sent. The oldest one is lost beyond that, and its number is skipped."""
    topic: str = ""

    def endpoint_of(self, endpoint: str, rank: int) -> str:
        """The address of engine `rank`."""
        if not rank:
            return endpoint
        if not endpoint.startswith("tcp://"):
            return f"{endpoint}_dp{rank}"
        host, _, port = endpoint.rpartition(":")
        return f"{host}:{int(port) + rank}"


def check_kv_events(args: "KvEventsOptions") -> Iterable[str]:
    if read_kv_events(args) is not None and not args.enable_prefix_caching:
        yield "kv_events_config: requires enable_prefix_caching, because events describe the prefix cache"


class KvEventsOptions(KvStoreOptions, kw_only=True, frozen=True):
    """Events of the prefix cache."""

    kv_events_config: Annotated[
        dict[str, Any] | None,
        _option(
            'Publish stored and evicted KV blocks for routers, over ZeroMQ (needs thalweg[kv-events]): '
            '{"enable_kv_cache_events": true, "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558"}',
            tier="scale",
        ),
    ] = None  # fmt: skip

    RULES: ClassVar[Rules] = (check_kv_events,)


def read_kv_events(args: "KvEventsOptions") -> KvEventsConfig | None:
    """How events are published. None: they are not. ConfigError names the field."""
    settings = args.kv_events_config
    if not settings:
        return None
    try:
        config = msgspec.convert(settings, KvEventsConfig)
    except msgspec.ValidationError as e:
        known = ", ".join(KvEventsConfig.__struct_fields__)
        raise ConfigError(f"kv_events_config: {e}; this version has {known}") from None
    for name, endpoint in (("endpoint", config.endpoint), ("replay_endpoint", config.replay_endpoint)):
        if endpoint is not None and (problem := _endpoint_problem(endpoint)):
            raise ConfigError(f"kv_events_config: {name}: {endpoint!r:.80} {problem}")
    if config.endpoint == config.replay_endpoint:
        raise ConfigError("kv_events_config: replay_endpoint: must differ from endpoint")
    return config if config.enable_kv_cache_events and config.publisher != "null" else None


def _endpoint_problem(endpoint: str) -> str:
    """Why no socket can have this address. "": one can."""
    kind, _, rest = endpoint.partition("://")
    if kind in ("ipc", "inproc") and rest:
        return ""
    host, _, port = rest.rpartition(":")
    if kind != "tcp" or not host or not port.isdigit() or not 1 <= int(port) <= 65535:
        return "is not an address such as tcp://*:5557, tcp://127.0.0.1:5557 or ipc:///path"
    return ""
