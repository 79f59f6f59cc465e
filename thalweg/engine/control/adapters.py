"""Adapters by content: the digest in each slot of the state, and the number of running sequences that use it.

A sequence that enters gets a slot with its adapter, or else the least recently used slot without users. The old content is
overwritten in order with the steps, so steps in flight still read it. Where every slot is in use, requests with other
adapters wait and let the rest pass, up to a limit: see `OVERTAKES`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from thalweg.engine.control.invariant import ensure
from thalweg.engine.control.request import Request

if TYPE_CHECKING:
    from numpy.typing import NDArray

OVERTAKES = 64
"""Requests with other adapters that may enter before one that waits for a slot. After that many, those behind it wait too,
and the slots in use run empty."""


class AdapterSlots:
    """slots: of the state, numbered from 1. seqs: slots of sequences. write: puts a loaded adapter into a slot, after the steps
    launched so far and before later ones. It returns the level of the part `Adapters` in steps with this adapter."""

    def __init__(self, slots: int, seqs: int, write: Callable[[int, bytes], int]) -> None:
        self._write = write
        self._loaded: set[bytes] = set()
        self._refused: dict[bytes, str] = {}
        """Adapters that could not be loaded -> the reason."""
        self._content = [b""] * (slots + 1)
        """The digest in each slot."""
        self._slot_of: dict[bytes, int] = {}
        self._users = [0] * (slots + 1)
        """Running sequences of each slot."""
        self._idle = dict.fromkeys(range(1, slots + 1))
        """Slots without users, in the order in which they were left."""
        self._held: list[Request] = []
        """Requests of this round that wait for a slot."""
        self.of_sequence: NDArray[np.int32] = np.zeros(seqs + 1, np.int32)
        """The adapter's slot of each sequence's slot. 0: it has none."""
        self.levels: NDArray[np.int32] = np.zeros(slots + 1, np.int32)
        """What `write` returned for each slot."""

    # ------------------------------------------------------------------ what is loaded

    def load(self, digest: bytes) -> None:
        """Let requests name this adapter from now on."""
        self._loaded.add(digest)
        self._refused.pop(digest, None)

    def refuse(self, digest: bytes, why: str) -> None:
        """Record that the adapter could not be loaded. Requests that name it get `why`."""
        self._refused[digest] = why

    def find_problem(self, digest: bytes) -> str | None:
        """The reason why requests may not name it. None: they may."""
        return None if digest in self._loaded else self._refused.get(digest, "the adapter is not loaded")

    def unload(self, digest: bytes) -> None:
        """Remove the adapter. The caller ensures that no request names it."""
        self._loaded.discard(digest)
        if (slot := self._slot_of.pop(digest, 0)) != 0:
            ensure(not self._users[slot], "an adapter is unloaded while sequences run with it")
            self._content[slot] = b""

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._loaded

    # ------------------------------------------------------------------ who runs with it

    def begin_round(self) -> None:
        """The scheduler starts at the head of the queue."""
        self._held.clear()

    def admits(self, request: Request) -> bool:
        """May a waiting request enter, as far as its adapter is concerned? Asked in rank order."""
        barred = any(r.overtaken >= OVERTAKES for r in self._held)
        if not barred and (request.adapter in self._slot_of or self._idle):
            return True
        self._held.append(request)
        return False

    def enter(self, slot: int, request: Request) -> None:
        """The request has got this slot of sequences, after `admits`."""
        at = self._slot_of.get(request.adapter)
        if at is None:
            at = next(iter(self._idle))
            self._slot_of.pop(self._content[at], None)
            self.levels[at] = self._write(at, request.adapter)
            self._content[at], self._slot_of[request.adapter] = request.adapter, at
        self._idle.pop(at, None)
        self._users[at] += 1
        self.of_sequence[slot] = at
        for other in self._held:
            other.overtaken += 1
        request.overtaken = 0

    def leave(self, slot: int) -> None:
        """A sequence that entered leaves its slot."""
        at = int(self.of_sequence[slot])
        self.of_sequence[slot] = 0
        self._users[at] -= 1
        if not self._users[at]:
            self._idle[at] = None

    def check(self, running: list[Request]) -> None:
        """InvariantError if the counts are not those of the running requests."""
        for slot, (content, users) in enumerate(zip(self._content, self._users, strict=True)):
            served = [r for r in running if r.slot and self.of_sequence[r.slot] == slot and r.adapter]
            ensure(len(served) == users, f"adapter slot {slot}: {users} users, and {len(served)} sequences")
            ensure(all(r.adapter == content for r in served), f"adapter slot {slot}: a sequence runs with another's adapter")
            ensure(slot == 0 or (slot in self._idle) == (not users), f"adapter slot {slot}: idle or in use, not both")
        ensure(self._slot_of == {c: s for s, c in enumerate(self._content) if c}, "adapters by slot and by digest differ")
