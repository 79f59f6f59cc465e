"""Adapters as a client of an engine process sees them: names, digests, and who uses them. Files are read here for their digest
only. The engine reads them again, and checks them against the model."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from dataclasses import dataclass

from thalweg.checkpoint.adapters import read_adapter
from thalweg.engine.client.fleet import Engines
from thalweg.errors import RequestError
from thalweg.lora import LoRARequest

NOT_ENABLED = "lora_request: adapters need an engine made with enable_lora=True (--enable-lora)"


@dataclass(frozen=True, slots=True)
class NamedAdapter:
    """An adapter that requests have named."""

    request: LoRARequest
    digest: bytes


class AdapterNames:
    """What names stand for. Several may stand for equal content."""

    def __init__(self) -> None:
        self._named: dict[str, NamedAdapter] = {}

    def find(self, request: LoRARequest) -> bytes | None:
        """The digest of a request's adapter. None: its files must be read, as the name is new, has another path, or asks for
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

    def all(self) -> list[NamedAdapter]:
        return list(self._named.values())

    def numbered(self, number: int) -> NamedAdapter | None:
        """By `lora_int_id`."""
        return next((n for n in self._named.values() if n.request.lora_int_id == number), None)

    def shares(self, named: NamedAdapter) -> bool:
        """Does another name stand for the same content?"""
        return sum(n.digest == named.digest for n in self._named.values()) > 1


def check_request(request: object) -> LoRARequest:
    """RequestError for what is no LoRARequest."""
    if not isinstance(request, LoRARequest):
        raise RequestError(f"lora_request must be a LoRARequest, not {type(request).__name__}", "lora_request")
    return request


class ClientAdapters:
    """The adapters of an engine process. Everything on one event loop, but reading files."""

    def __init__(self, supervisor: Engines, enabled: bool, most: int) -> None:
        """most: kept in the engine's host memory while no request uses them."""
        self._supervisor, self._enabled, self._most = supervisor, enabled, most
        self._names = AdapterNames()
        self._loaded: dict[bytes, None] = {}
        """In the order of their last use."""
        self._users = Counter[bytes]()
        self._loading = asyncio.Lock()

    async def add(self, request: object) -> bytes:
        """The adapter's digest; the engine has it by then. RequestError, CheckpointError or UnsupportedModelError say what is
        wrong with it."""
        asked = check_request(request)
        if not self._enabled:
            raise RequestError(NOT_ENABLED, "lora_request")
        digest = self._names.find(asked)
        if digest is None or digest not in self._loaded:
            async with self._loading:
                digest = await self._load(asked)
        self._loaded[digest] = self._loaded.pop(digest)
        return digest

    async def _load(self, request: LoRARequest) -> bytes:
        """Unless another request has, while this one waited."""
        known = self._names.find(request)
        if known is not None and known in self._loaded:
            return known
        path = os.path.abspath(request.lora_path)
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

    def hold(self, digest: bytes) -> None:
        """A request uses it from now on. b"": it uses none."""
        if digest:
            self._users[digest] += 1

    def release(self, digest: bytes) -> None:
        """The request has ended. The engine forgets adapters that no request uses, those used longest ago first, until it has
        no more than it may."""
        if digest:
            self._users[digest] -= 1
            self._trim()

    def _trim(self) -> None:
        for digest in [d for d in self._loaded if not self._users[d]]:
            if len(self._loaded) <= self._most:
                return
            self._unload(digest)

    def _unload(self, digest: bytes) -> None:
        del self._loaded[digest]
        del self._users[digest]
        self._supervisor.unload_adapter(digest)

    def remove(self, number: int) -> bool:
        """Forget the adapter of this `lora_int_id`. False: there is none. RequestError while requests use it."""
        named = self._names.numbered(number)
        if named is None:
            return False
        if named.digest in self._loaded and not self._names.shares(named):
            if users := self._users[named.digest]:
                raise RequestError(f"lora_int_id: {users} requests use the adapter: wait until they end", "lora_int_id")
            self._unload(named.digest)
        self._names.drop(named)
        return True

    def numbers(self) -> set[int]:
        """`lora_int_id` of each."""
        return {n.request.lora_int_id for n in self._names.all()}
