"""Concurrent fetches for an event loop: a slow host delays only its items, and one caller's items delay no other caller's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial

from thalweg.host.turns import FairSemaphore, run_held
from thalweg.media.gate import MediaConnector

PER_HOST = 4
"""Items fetched from one host at once."""
TOGETHER = 16
"""Items in memory, from the beginning of their fetch until they are decoded."""
THREADS = 128
"""More than TOGETHER: a caller that has none of those gets one more."""


class Fetches:
    """`fetch` is for one event loop, `read_all` for any thread."""

    def __init__(self, gate: MediaConnector) -> None:
        self._gate = gate
        self._threads = ThreadPoolExecutor(THREADS, "fetch")
        self._items = FairSemaphore(TOGETHER, spare=True)
        self._hosts: dict[str, FairSemaphore] = {}

    @asynccontextmanager
    async def fetch(self, url: str, at: str, tenant: str) -> AsyncIterator[bytes]:
        """The bytes of a URL while the block runs. Empty for a URL that needs no host. tenant: the caller, for fair turns on
        each host and in total. RequestError names `at`."""
        host = self._gate.host(url, at) if url else ""
        if not host:
            yield b""
            return
        turns = self._hosts.setdefault(host, FairSemaphore(PER_HOST, spare=True))
        place = await turns.take(tenant)

        def release() -> None:
            turns.give(tenant, place)
            if turns.idle:
                self._hosts.pop(host, None)

        try:
            item = await self._items.take(tenant)
        except BaseException:
            release()
            raise
        try:
            yield await run_held(self._threads, partial(self._gate.read, url, at), release)
        finally:
            self._items.give(tenant, item)

    def read_all(self, items: Sequence[tuple[str, str]]) -> list[bytes]:
        """The bytes of each (URL, place in the request). Empty, where no host need be asked. RequestError."""
        remote = [bool(url and self._gate.host(url, at)) for url, at in items]
        fetched = [self._threads.submit(self._gate.read, *i) if r else None for i, r in zip(items, remote, strict=True)]
        return [b"" if one is None else one.result() for one in fetched]
