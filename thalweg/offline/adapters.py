"""Adapters of an engine in the calling thread: read when a request first names them, forgotten when too many are idle."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial

from thalweg.config import EngineArgs
from thalweg.engine.client.adapters import NOT_ENABLED, AdapterNames, check_request, count_kept, locate_adapter
from thalweg.engine.control.adapters import AdapterSlots
from thalweg.engine.control.core import EngineCore
from thalweg.errors import RequestError, ThalwegError
from thalweg.lora import LoRARequest

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Engine:
    core: EngineCore
    slots: AdapterSlots


class OfflineAdapters:
    """The adapters that requests have named. Equal content is loaded once, whatever its names."""

    def __init__(self, args: EngineArgs) -> None:
        self._most, self._locate = count_kept(args), partial(locate_adapter, args)
        self._names = AdapterNames()
        self._loaded: dict[bytes, None] = {}
        """In the order of their last use."""
        self._engine: _Engine | None = None

    def attach(self, core: EngineCore) -> None:
        """Serve a new engine. Loaded adapters are read again, for requests that go on. An adapter with changed files is
        dropped: its requests end with an error."""
        if core.adapters is None:
            return
        self._engine = _Engine(core, core.adapters)
        loaded, self._loaded = self._loaded, {}
        for named in self._names.all():
            if named.digest not in loaded:
                continue
            try:
                self._load(self._engine, named.request, named.digest)
            except ThalwegError as e:
                logger.error("adapter %r is dropped: %s", named.request.lora_name, e)
                core.adapters.refuse(named.digest, str(e))
                self._names.drop(named)

    def detach(self) -> None:
        """Release the engine, with its memory."""
        self._engine = None

    def find_digest(self, request: object) -> bytes:
        """The digest of the adapter that a request names, loaded on return. b"": no adapter. RequestError, or the error of
        the files."""
        if request is None:
            return b""
        requested, engine = check_request(request), self._engine
        if engine is None:
            raise RequestError(NOT_ENABLED, "lora_request")
        digest = self._names.find(requested)
        if digest is None or digest not in self._loaded:
            digest = self._load(engine, requested, digest or b"")
        self._names.put(requested, digest)
        self._loaded[digest] = self._loaded.pop(digest)
        return digest

    def _load(self, engine: _Engine, request: LoRARequest, digest: bytes = b"") -> bytes:
        """digest: the required digest of the files. b"": any."""
        found = engine.core.read_adapter(self._locate(request.lora_path), digest)
        engine.slots.load(found)
        self._loaded[found] = None
        return found

    def _unload(self, engine: _Engine, digest: bytes) -> str:
        """The reason for not unloading, or ""."""
        why = engine.core.unload_adapter(digest)
        if not why:
            del self._loaded[digest]
        return why

    def trim(self, keep: bytes = b"") -> None:
        """Forget host copies that no request uses, those used longest ago first, until there are no more than may be. keep: one
        that stays."""
        for digest in [d for d in self._loaded if d != keep]:
            if self._engine is None or len(self._loaded) <= self._most:
                return
            if not self._names.is_pinned(digest):
                self._unload(self._engine, digest)

    def pin(self, number: int) -> None:
        """As `AdapterNames.pin`."""
        self._names.pin(number)

    def remove(self, number: int) -> bool:
        """Forget the adapter of this `lora_int_id`. False: there is none. RequestError while requests use it."""
        named = self._names.find_number(number)
        if named is None:
            return False
        unused = self._engine is not None and named.digest in self._loaded and not self._names.shares(named)
        if self._engine is not None and unused and (why := self._unload(self._engine, named.digest)):
            raise RequestError(f"lora_int_id: {why}", "lora_int_id")
        self._names.drop(named)
        return True

    def numbers(self) -> set[int]:
        """`lora_int_id` of each."""
        return self._names.numbers()
