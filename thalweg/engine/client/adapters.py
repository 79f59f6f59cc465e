"""Adapters in a client of an engine process: names, digests, and users. Files are read here only for their digest. The engine
reads them again, and checks them against the model."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from thalweg.checkpoint.adapters import read_adapter
from thalweg.checkpoint.hub import resolve_adapter
from thalweg.config import EngineArgs
from thalweg.engine import messages as m
from thalweg.engine.client.fleet import Engines
from thalweg.engine.client.media import MEDIA
from thalweg.errors import ConfigError, RequestError
from thalweg.lora import LoRARequest
from thalweg.media_kinds import MEDIA_KINDS

NOT_ENABLED = "lora_request: adapters need an engine made with enable_lora=True (--enable-lora)"

FIRST_DEFAULT = 1 << 30
"""The first `lora_int_id` of default adapters, above those of users."""


@dataclass(frozen=True, slots=True)
class NamedAdapter:
    """An adapter that requests have named."""

    request: LoRARequest
    digest: bytes


class AdapterNames:
    """Names of adapters and their digests. Several names may have equal content."""

    def __init__(self) -> None:
        self._named: dict[str, NamedAdapter] = {}
        self._pinned: set[str] = set()

    def find(self, request: LoRARequest) -> bytes | None:
        """The digest of a request's adapter. None: its files must be read, as the name is new, has another path, or has
        `load_inplace`. RequestError if its number is that of another name."""
        named = self._named.get(request.lora_name)
        for other in self._named.values():
            if other is not named and other.request.lora_int_id == request.lora_int_id:
                words = f"lora_int_id: {request.lora_int_id} is that of {other.request.lora_name!r:.80}; each name has its own"
                raise RequestError(words, "lora_request")
        if named is None or request.load_inplace or named.request.lora_path != request.lora_path:
            return None
        return named.digest

    def put(self, request: LoRARequest, digest: bytes) -> None:
        self._named[request.lora_name] = NamedAdapter(request, digest)

    def drop(self, named: NamedAdapter) -> None:
        del self._named[named.request.lora_name]
        self._pinned.discard(named.request.lora_name)

    def pin(self, number: int) -> None:
        """Keep the adapter of this `lora_int_id` in host memory, also after `load_inplace`. RequestError if there is none."""
        named = self.find_number(number)
        if named is None:
            raise RequestError(f"lora_int_id: no adapter has the number {number}: load it with add_lora first", "lora_int_id")
        self._pinned.add(named.request.lora_name)

    def is_pinned(self, digest: bytes) -> bool:
        """Is it the content of a pinned name?"""
        return any(self._named[name].digest == digest for name in self._pinned)

    def has(self, digest: bytes) -> bool:
        """Is it the content of a name?"""
        return any(n.digest == digest for n in self._named.values())

    def all(self) -> list[NamedAdapter]:
        return list(self._named.values())

    def find_number(self, number: int) -> NamedAdapter | None:
        """By `lora_int_id`."""
        return next((n for n in self._named.values() if n.request.lora_int_id == number), None)

    def numbers(self) -> set[int]:
        """`lora_int_id` of each."""
        return {n.request.lora_int_id for n in self._named.values()}

    def shares(self, named: NamedAdapter) -> bool:
        """Does another name have the same content?"""
        return sum(n.digest == named.digest for n in self._named.values()) > 1


def check_request(request: object) -> LoRARequest:
    """RequestError for any other type."""
    if not isinstance(request, LoRARequest):
        raise RequestError(f"lora_request must be a LoRARequest, not {type(request).__name__}", "lora_request")
    return request


def count_kept(args: EngineArgs) -> int:
    """Adapters that stay in host memory while no request uses them."""
    return args.max_cpu_loras or args.max_loras


def locate_adapter(args: EngineArgs, path: str) -> str:
    """The local, absolute path of an adapter, downloaded first if it is a hub id. Errors as `hub.resolve_adapter`."""
    return str(resolve_adapter(path, download_dir=args.download_dir, token=args.hf_token, ignore=args.ignore_patterns))


class DefaultAdapters:
    """The adapters of `default_mm_loras`: of requests that name none and have media of a kind."""

    def __init__(self, args: EngineArgs) -> None:
        """ConfigError for an unknown kind of media."""
        paths = args.default_mm_loras or {}
        if unknown := sorted(paths.keys() - set(MEDIA_KINDS.names())):
            raise ConfigError(
                f"default_mm_loras: {unknown[0]!r:.40} is no kind of media; there are {', '.join(MEDIA_KINDS.names())}"
            )
        self._by_kind = {kind: LoRARequest(kind, FIRST_DEFAULT + i, path) for i, (kind, path) in enumerate(paths.items())}

    @property
    def requests(self) -> list[LoRARequest]:
        return list(self._by_kind.values())

    def choose(self, prompt: object, named: LoRARequest | None) -> LoRARequest | None:
        """The adapter of a request. prompt: as `PromptReader` returns it. named: the one that it names. RequestError if it has
        media of kinds with different defaults."""
        if named is not None or not self._by_kind or not isinstance(prompt, Mapping):
            return named
        found = {item.kind: self._by_kind[item.kind] for item in prompt.get(MEDIA) or () if item.kind in self._by_kind}
        if len({request.lora_path for request in found.values()}) > 1:
            kinds = " and ".join(sorted(found))
            raise RequestError(
                f"lora_request: the prompt has {kinds}, with different default adapters; name one", "lora_request"
            )
        return next(iter(found.values()), None)


@dataclass(frozen=True, slots=True)
class AdapterUse:
    """An open request that uses an adapter."""

    name: str
    digest: bytes
    handles: tuple[int, ...]
    """Of its sequences."""


class AdapterTraffic:
    """Names of adapters with waiting and with running sequences, from the engine's frames. A preempted sequence still counts
    as running."""

    def __init__(self) -> None:
        self._waiting: dict[int, str] = {}
        self._running: dict[int, str] = {}

    def open(self, use: AdapterUse) -> None:
        self._waiting.update(dict.fromkeys(use.handles, use.name))

    def close(self, handles: Sequence[int]) -> None:
        for handle in handles:
            self._waiting.pop(handle, None)
            self._running.pop(handle, None)

    def record(self, frame: m.Outputs) -> None:
        if not self._waiting and not self._running:
            return
        for started in frame.started:
            if (name := self._waiting.pop(started.handle, None)) is not None:
                self._running[started.handle] = name
        self.close([f.handle for f in frame.finished])

    def names(self) -> tuple[list[str], list[str]]:
        """(running, waiting), each sorted."""
        return sorted(set(self._running.values())), sorted(set(self._waiting.values()))


class ClientAdapters:
    """The adapters of an engine process. Everything on one event loop, but reading files."""

    def __init__(self, supervisor: Engines, args: EngineArgs) -> None:
        self._supervisor, self._enabled, self._most = supervisor, args.enable_lora, count_kept(args)
        self._locate = partial(locate_adapter, args)
        self._names = AdapterNames()
        self._loaded: dict[bytes, None] = {}
        """In the order of their last use."""
        self._users = Counter[bytes]()
        self._loading = asyncio.Lock()
        self.traffic = AdapterTraffic()

    async def add(self, request: object) -> bytes:
        """The digest of a loaded adapter, loading it first if necessary. RequestError, CheckpointError or
        UnsupportedModelError describe the fault."""
        requested = check_request(request)
        if not self._enabled:
            raise RequestError(NOT_ENABLED, "lora_request")
        digest = self._names.find(requested)
        if digest is None or digest not in self._loaded:
            async with self._loading:
                digest = await self._load(requested)
        self._loaded[digest] = self._loaded.pop(digest)
        self._trim(digest)
        return digest

    async def _load(self, request: LoRARequest) -> bytes:
        """Load it, unless another request has, while this one waited."""
        known = self._names.find(request)
        if known is not None and known in self._loaded:
            return known
        path = await asyncio.to_thread(self._locate, request.lora_path)
        digest = (await asyncio.to_thread(read_adapter, path)).digest
        if known is not None and known != digest:
            raise RequestError(
                f"lora_path: {request.lora_path!r:.200} has changed since it was first read: ask for load_inplace",
                "lora_request",
            )
        if digest not in self._loaded:
            await self._supervisor.load_adapter(digest, path)
        self._loaded[digest] = None
        self._names.put(request, digest)
        return digest

    def hold(self, request: LoRARequest, digest: bytes, handles: Sequence[int]) -> AdapterUse:
        """A request with these sequences uses the adapter until `release`. digest: as `add` returned it, just before."""
        use = AdapterUse(request.lora_name, digest, tuple(handles))
        self._users[digest] += 1
        self.traffic.open(use)
        return use

    def release(self, use: AdapterUse) -> None:
        """The request has ended."""
        self.traffic.close(use.handles)
        self._users[use.digest] -= 1
        self._trim()

    def _trim(self, kept: bytes = b"") -> None:
        """Unload adapters without a request: those without a name, and the least recently used, down to the engine's limit.
        Pinned ones stay, and so does `kept`."""
        for digest in [d for d in self._loaded if not self._users[d] and d != kept]:
            if not self._names.has(digest) or (len(self._loaded) > self._most and not self._names.is_pinned(digest)):
                self._unload(digest)

    def _unload(self, digest: bytes) -> None:
        del self._loaded[digest]
        del self._users[digest]
        self._supervisor.unload_adapter(digest)

    def remove(self, number: int) -> bool:
        """Forget the adapter of this `lora_int_id`. False: there is none. RequestError while requests use it."""
        named = self._names.find_number(number)
        if named is None:
            return False
        if named.digest in self._loaded and not self._names.shares(named):
            if users := self._users[named.digest]:
                raise RequestError(f"lora_int_id: {users} requests use the adapter: wait until they end", "lora_int_id")
            self._unload(named.digest)
        self._names.drop(named)
        return True

    def retire(self, number: int) -> bool:
        """Forget the name of this `lora_int_id` now, and its content when the last request that uses it has ended. False:
        there is none."""
        named = self._names.find_number(number)
        if named is None:
            return False
        self._names.drop(named)
        self._trim()
        return True

    def pin(self, number: int) -> None:
        """As `AdapterNames.pin`."""
        self._names.pin(number)

    def numbers(self) -> set[int]:
        """`lora_int_id` of each."""
        return self._names.numbers()
