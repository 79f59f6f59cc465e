"""Adapters of an engine in the calling thread: read when a request first names them, forgotten when too many are idle."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from thalweg.engine.control.adapters import AdapterSlots
from thalweg.engine.control.core import EngineCore
from thalweg.engine.control.executor import Executor
from thalweg.errors import RequestError, ThalwegError
from thalweg.lora import LoRARequest

logger = logging.getLogger(__name__)
NOT_ENABLED = "lora_request: adapters need an engine made with enable_lora=True (--enable-lora)"


@dataclass(frozen=True, slots=True)
class _Named:
    """An adapter that requests have named."""

    request: LoRARequest
    digest: bytes


@dataclass(frozen=True, slots=True)
class _Engine:
    core: EngineCore
    slots: AdapterSlots
    executor: Executor


class OfflineAdapters:
    """The adapters that requests have named. Several names may stand for equal content, which is loaded once."""

    def __init__(self, most: int) -> None:
        """most: kept on the host while no request uses them."""
        self._most = most
        self._named: dict[str, _Named] = {}
        self._loaded: dict[bytes, None] = {}
        """In the order of their last use."""
        self._engine: _Engine | None = None

    def attach(self, core: EngineCore, executor: Executor) -> None:
        """Serve a new engine. What was loaded before is read again, for requests that go on. An adapter whose files have
        changed is dropped: its requests end with an error."""
        if core.adapters is None:
            return
        self._engine = _Engine(core, core.adapters, executor)
        loaded, self._loaded = self._loaded, {}
        for name, named in list(self._named.items()):
            if named.digest not in loaded:
                continue
            try:
                self._load(self._engine, named.request, named.digest)
            except ThalwegError as e:
                logger.error("adapter %r is dropped: %s", name, e)
                del self._named[name]

    def detach(self) -> None:
        """The engine goes, with its memory."""
        self._engine = None

    def find_digest(self, request: object) -> bytes:
        """The digest of the adapter that a request names, which is loaded by then. b"": it names none. RequestError, or what is
        wrong with the files."""
        if request is None:
            return b""
        if not isinstance(request, LoRARequest):
            raise RequestError(f"lora_request must be a LoRARequest, not {type(request).__name__}", "lora_request")
        return self.add(request)

    def add(self, request: LoRARequest) -> bytes:
        """The adapter's digest. Its files are read where the name is new, has another path, or asks for `load_inplace`."""
        engine, named = self._engine, self._named.get(request.lora_name)
        if engine is None:
            raise RequestError(NOT_ENABLED, "lora_request")
        for other in self._named.values():
            if other is not named and other.request.lora_int_id == request.lora_int_id:
                words = f"lora_int_id: {request.lora_int_id} is that of {other.request.lora_name!r:.80}; each name has its own"
                raise RequestError(words, "lora_request")
        if named is None or request.load_inplace or named.request.lora_path != request.lora_path:
            digest = self._load(engine, request)
        else:
            digest = named.digest if named.digest in self._loaded else self._load(engine, request, named.digest)
        self._named[request.lora_name] = _Named(request, digest)
        self._loaded[digest] = self._loaded.pop(digest)
        return digest

    def _load(self, engine: _Engine, request: LoRARequest, digest: bytes = b"") -> bytes:
        """digest: what the files must have. b"": whatever they have."""
        found: bytes = engine.executor.call("read_adapter", request.lora_path, digest)[0]
        engine.slots.load(found)
        self._loaded[found] = None
        return found

    def _unload(self, engine: _Engine, digest: bytes) -> str:
        """Why not, or ""."""
        why = engine.core.unload_adapter(digest)
        if not why:
            del self._loaded[digest]
        return why

    def trim(self) -> None:
        """Forget host copies that no request uses, those used longest ago first, until there are no more than may be."""
        for digest in list(self._loaded):
            if self._engine is None or len(self._loaded) <= self._most:
                return
            self._unload(self._engine, digest)

    def remove(self, number: int) -> bool:
        """Forget the adapter of this `lora_int_id`. False: there is none. RequestError while requests use it."""
        found = next((n for n in self._named.values() if n.request.lora_int_id == number), None)
        if found is None:
            return False
        shared = sum(n.digest == found.digest for n in self._named.values()) > 1
        unused = self._engine is not None and found.digest in self._loaded and not shared
        if self._engine is not None and unused and (why := self._unload(self._engine, found.digest)):
            raise RequestError(f"lora_int_id: {why}", "lora_int_id")
        del self._named[found.request.lora_name]
        return True

    def numbers(self) -> set[int]:
        """`lora_int_id` of each."""
        return {n.request.lora_int_id for n in self._named.values()}
