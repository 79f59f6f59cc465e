"""A store for the simulator: blocks in a dict, and every fault that a store can have, drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from thalweg.backends.null import SimClock
from thalweg.engine.control.store.base import Store

FAULTS = ("liar", "lost", "cut", "swapped", "raises", "late")


class FaultyStore(Store):
    """faults: of each name in FAULTS, how likely it is at each call or block."""

    shared = True

    def __init__(self, rng: random.Random, faults: Mapping[str, float]) -> None:
        self.rng, self.faults = rng, faults
        self.blocks: dict[bytes, bytes] = {}
        self.loaded = self.wrong = 0
        self.per_step = rng.choice([1, 1, 100, 1 << 20])
        """Bytes that leave with a step."""

    @classmethod
    def open(cls, options: Mapping[str, Any]) -> FaultyStore:
        raise NotImplementedError

    def has_fault(self, name: str) -> bool:
        return self.rng.random() < self.faults.get(name, 0)

    def lookup(self, keys: Sequence[bytes]) -> list[bool]:
        if self.has_fault("raises"):
            raise OSError("no route to the store")
        return [key in self.blocks or self.has_fault("liar") for key in keys]

    def load(self, keys: Sequence[bytes]) -> list[bytes | None]:
        if self.has_fault("raises"):
            raise ValueError("the store is confused")
        return [self._block(key) for key in keys]

    def _block(self, key: bytes) -> bytes | None:
        block = self.blocks.get(key)
        if block is None:
            return None
        self.loaded += 1
        if self.has_fault("lost"):
            block = None
        elif self.has_fault("cut"):
            block = block[: self.rng.randrange(len(block))]
        elif self.has_fault("swapped"):
            block = self.rng.choice(list(self.blocks.values()))
        self.wrong += block != self.blocks[key]
        return block

    def save(self, keys: Sequence[bytes], blocks: Sequence[bytes]) -> None:
        if self.has_fault("raises"):
            raise OSError("the store is full")
        for key, block in zip(keys, blocks, strict=True):
            assert self.blocks.get(key, block) == block, "one key, two blocks"
            self.blocks[key] = block


class SimLane:
    """Calls are made at once, and done a moment of simulated time later; now and then much later, or never."""

    def __init__(self, store: FaultyStore, clock: SimClock) -> None:
        self.store, self.clock = store, clock

    def submit(self, call: Callable[[], Any]) -> SimJob:
        rng = self.store.rng
        seconds = rng.choice([5, 1e9]) if self.store.has_fault("late") else rng.choice([0, rng.random() * 3])
        return SimJob(call, self.clock, self.clock() + seconds)

    def wait(self, seconds: float) -> None:
        self.clock.advance_to(self.clock() + 0.5)


class SimJob:
    def __init__(self, call: Callable[[], Any], clock: SimClock, due: float) -> None:
        self.clock, self.due = clock, due
        self.value: Any = None
        self.error: Exception | None = None
        try:
            self.value = call()
        except (OSError, ValueError) as e:
            self.error = e

    @property
    def is_done(self) -> bool:
        return self.clock() >= self.due

    def result(self) -> Any:
        assert self.is_done
        if self.error is not None:
            raise self.error
        return self.value
