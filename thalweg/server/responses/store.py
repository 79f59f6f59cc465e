"""Stored responses, by owner, within a bound of bytes.

A response keeps the turns before it: a conversation can continue although its first responses were deleted or evicted. Turns
are shared by the responses that follow, and each is counted once. When there is no room, the largest owner loses its least
recently used response.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections import OrderedDict
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from thalweg.server.core.context import ServerContext

log = logging.getLogger(__name__)
PER_TURN = 512
"""Bytes of a stored turn besides its texts."""
SEGMENT = 256
"""Frames packed together."""


class EventLog:
    """The frames of one stream, in order of arrival. Any number of readers may follow, from any frame on."""

    def __init__(self) -> None:
        self._packed: list[bytes] = []
        self._recent: list[bytes] = []
        self._changed = asyncio.Event()
        self.ended = False
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._packed) * SEGMENT + len(self._recent)

    def add(self, frame: bytes) -> None:
        self._recent.append(frame)
        self.bytes += len(frame)
        if len(self._recent) == SEGMENT:
            packed = zlib.compress(orjson.dumps([f.decode() for f in self._recent]), 1)
            self.bytes += len(packed) - sum(map(len, self._recent))
            self._packed.append(packed)
            self._recent = []
        self._wake()

    def end(self) -> None:
        self.ended = True
        self._wake()

    async def read(self, at: int = 0) -> AsyncGenerator[bytes, None]:
        """Frames from number `at` on, until the stream has ended."""
        while True:
            while at < len(self):
                segment, first = divmod(at, SEGMENT)
                known = segment < len(self._packed)
                frames = _unpack_frames(self._packed[segment]) if known else list(self._recent)
                for frame in frames[first:]:
                    yield frame
                    at += 1
            if self.ended:
                return
            await self._changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _unpack_frames(packed: bytes) -> list[bytes]:
    return [frame.encode() for frame in orjson.loads(zlib.decompress(packed))]


@dataclass(eq=False, slots=True)
class StoredResponse:
    """One response: its input and its output, both JSON."""

    id: str
    input: bytes
    """The items of only this turn."""
    body: bytes
    parent: StoredResponse | None = None
    background: bool = False
    log: EventLog | None = None
    task: asyncio.Task[None] | None = None
    """Runs it, while it runs in the background."""
    holders: int = field(default=0)
    """Number of stored responses that need this one, itself included."""

    @property
    def bytes(self) -> int:
        return PER_TURN + len(self.input) + len(self.body) + (self.log.bytes if self.log is not None else 0)

    @property
    def running(self) -> bool:
        return self.task is not None and not self.task.done()

    def response(self) -> dict[str, Any]:
        found: dict[str, Any] = orjson.loads(self.body)
        return found

    def history(self) -> list[dict[str, Any]]:
        """Items of all turns up to this one, outputs included, in order."""
        turns, turn = [], self
        while turn is not None:
            turns.append(turn)
            turn = turn.parent  # type: ignore[assignment]
        return [item for t in reversed(turns) for item in (*orjson.loads(t.input), *t.response()["output"])]


class ResponseStore:
    """limit: bytes of all turns together. 0 keeps nothing."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.bytes = 0
        self._kept: dict[str, OrderedDict[str, StoredResponse]] = {}
        """By owner. The most recently used is at the end."""
        self._counted: dict[StoredResponse, int] = {}
        """Bytes of each turn that something holds on to, as they were when counted."""
        self._of: dict[str, int] = {}
        """Bytes of each owner."""

    def get(self, owner: str, id: str) -> StoredResponse | None:
        kept = self._kept.get(owner, OrderedDict())
        if id in kept:
            kept.move_to_end(id)
        return kept.get(id)

    def put(self, owner: str, turn: StoredResponse) -> None:
        """Store `turn`, or count it again if it has grown."""
        kept = self._kept.setdefault(owner, OrderedDict())
        if turn.id not in kept:
            at: StoredResponse | None = turn
            while at is not None:
                at.holders += 1
                if at.holders == 1:  # new, or evicted while the next turn was made
                    self._count(owner, at)
                at = at.parent
        kept[turn.id] = turn
        kept.move_to_end(turn.id)
        self._count(owner, turn)
        self._fit()

    def delete(self, owner: str, id: str) -> StoredResponse | None:
        """Forget a response. Later responses keep its turns."""
        kept = self._kept.get(owner, OrderedDict())
        turn = kept.pop(id, None)
        if turn is None:
            return None
        if not kept:
            del self._kept[owner]
        turn.log = None
        self._count(owner, turn)
        at: StoredResponse | None = turn
        while at is not None:
            at.holders -= 1
            if not at.holders:
                self._count(owner, at, gone=True)
            at = at.parent
        return turn

    def _count(self, owner: str, turn: StoredResponse, gone: bool = False) -> None:
        before, now = self._counted.pop(turn, 0), 0 if gone else turn.bytes
        if now:
            self._counted[turn] = now
        self.bytes += now - before
        held = self._of.get(owner, 0) + now - before
        if held:
            self._of[owner] = held
        else:
            self._of.pop(owner, None)

    def _fit(self) -> None:
        """A turn that runs stays."""
        while self.bytes > self.limit:
            for owner in sorted(self._of, key=lambda o: -self._of[o]):
                oldest = next((i for i, t in self._kept.get(owner, OrderedDict()).items() if not t.running), None)
                if oldest is not None:
                    log.debug("the response %s is forgotten: there is no room", oldest)
                    self.delete(owner, oldest)
                    break
            else:
                return


def store(serving: ServerContext) -> ResponseStore:
    """That of a server."""
    return serving.share(_build)


def _build(serving: ServerContext) -> ResponseStore:
    return ResponseStore(serving.settings.responses_store_bytes)
