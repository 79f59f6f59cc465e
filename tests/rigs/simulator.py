"""Deterministic simulator of the control plane: one seed, one run, the same every time.

    python tests/rigs/simulator.py --seeds 1000 --start 0

Each seed draws a configuration and a workload, and injects faults: aborts at any moment, cache blocks that are withheld for
a while, steps that return not-a-number for a sequence, a device that runs late, a store that lies, fails or hangs, and
crashes of the core, after which every unfinished request is resubmitted as prompt + emitted tokens. Every token is compared
with the oracle, every invariant checked at every step, and at the end nothing may be left: no block, no slot, no request.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from stores import FAULTS, FaultyStore
from world import World, random_config, random_request

from thalweg.backends.null import SimClock
from thalweg.engine.messages import Outputs


@dataclass
class Summary:
    seeds: int = 0
    requests: int = 0
    tokens: int = 0
    steps: int = 0
    preemptions: int = 0
    aborts: int = 0
    crashes: int = 0
    sick: int = 0
    cached: int = 0
    drafted: int = 0
    accepted: int = 0
    loaded: int = 0
    """Tokens that came from a store."""
    wrong: int = 0
    """Blocks that a store gave wrong, or not at all."""
    digest: str = ""


class Run:
    """One seed."""

    def __init__(self, seed: int, check: bool = True) -> None:
        rng = self.rng = random.Random(seed)
        self.config = random_config(rng)
        self.clock = SimClock()
        luck = random.Random(seed + (1 << 40))
        faults = {name: luck.choice([0, 0, luck.random() * 0.3]) for name in FAULTS}
        self.store = FaultyStore(luck, faults) if luck.random() < 0.6 else None
        self.world = self.make_world(
            self.config, salt=seed, deferred=rng.random() < 0.5, poison=rng.random() < 0.7, check=check,
            share_from=rng.choice([1, 1, 12, 1000]), clock=self.clock, luck=rng.choice([0.0, 0.7, 0.95, 1.0]),
            store=self.store, drafts=rng.choice([0, 1, 2, 4, 7]), on_device=seed % 5 < 2, events=seed % 3 > 0,
        )  # fmt: skip
        self.total = rng.randrange(1, 25)
        self.faults = {
            name: rng.choice([0, 0, rng.random() * 0.08]) for name in ("abort", "withhold", "sick", "crash", "reset")
        }
        self.stems = [[rng.randrange(self.config.model.vocab) for _ in range(self.config.model.max_len)]]
        self.sent = 0
        self.summary = Summary(seeds=1)
        self.trace = hashlib.blake2b(digest_size=16)

    def make_world(self, *args: Any, **kwargs: Any) -> World:
        return World(*args, **kwargs)

    def go(self) -> Summary:
        steps = 0
        while self.sent < self.total or self.world.core.has_work:
            self.arrive()
            self.inject()
            self.clock.advance_to(self.clock() + self.rng.random())
            self.advance()
            steps += 1
            assert steps < 30_000, "no end in sight"
        self.summary.steps += steps
        for group in self.world.core.kv.groups:
            group.pool.withheld = 0
        self.world.drain()
        self.collect()
        self.summary.wrong = 0 if self.store is None else self.store.wrong
        self.summary.digest = self.trace.hexdigest()
        return self.summary

    def advance(self) -> None:
        self.note(self.world.step())

    def arrive(self) -> None:
        while self.sent < self.total and self.rng.random() < 0.35:
            self.world.submit(random_request(self.rng, self.sent, self.config, self.stems, self.world.oracle))
            self.sent += 1
            self.summary.requests += 1

    def inject(self) -> None:
        rng, world, faults = self.rng, self.world, self.faults
        pools = [g.pool for g in world.core.kv.groups]
        if rng.random() < faults["withhold"]:
            pool = rng.choice(pools)
            pool.withheld = rng.randrange(pool.total)
        elif rng.random() < 0.3:
            for pool in pools:
                pool.withheld = 0
        if self.sent and rng.random() < faults["abort"]:
            world.abort(rng.randrange(self.sent))
            self.summary.aborts += 1
        if self.sent and rng.random() < faults["sick"]:
            handle = rng.randrange(self.sent)
            world.sick[handle] = 1
            world.tracked[handle].may_fail = True
            self.summary.sick += 1
        if rng.random() < faults["reset"]:
            world.core.reset_prefix_cache()
        if rng.random() < faults["crash"]:
            self.crash()

    def crash(self) -> None:
        """The core and the device's memory are gone; what the client knows is resubmitted."""
        world = self.world
        self.collect()
        world.boot()
        self.summary.crashes += 1
        for t in world.tracked.values():
            if t.finished is None:
                prompt = t.request.tokens[: t.request.prompt_len]
                tokens = np.concatenate([prompt, np.array(t.tokens[: t.got], np.int32)])
                world.core.add([msgspec.structs.replace(t.request, tokens=tokens)])
                t.scored = 1

    def collect(self) -> None:
        stats = self.world.core.stats()
        self.summary.tokens += stats.generated_tokens
        self.summary.preemptions += stats.preemptions
        self.summary.cached += stats.prefix_hits
        if self.store is not None:
            self.summary.loaded += self.world.core.stats().store_hits
        drafts = self.world.core.scheduler.counters.drafts
        self.summary.drafted += drafts.drafted
        self.summary.accepted += drafts.accepted

    def note(self, out: Outputs | None) -> None:
        if out is not None:
            self.trace.update(msgspec.msgpack.encode([out.handles.tolist(), out.tokens.tolist(), out.time, out.finished]))


def simulate(start: int, seeds: int, check: bool = True) -> Summary:
    """Run these seeds; AssertionError names the seed that failed."""
    total = Summary()
    digest = hashlib.blake2b(digest_size=8)
    for seed in range(start, start + seeds):
        try:
            one = Run(seed, check).go()
        except Exception as e:
            raise AssertionError(f"seed {seed}: {type(e).__name__}: {e}") from e
        for name in (
            "seeds",
            "requests",
            "tokens",
            "steps",
            "preemptions",
            "aborts",
            "crashes",
            "sick",
            "cached",
            "drafted",
            "accepted",
            "loaded",
            "wrong",
        ):
            setattr(total, name, getattr(total, name) + getattr(one, name))
        digest.update(one.digest.encode())
    total.digest = digest.hexdigest()
    return total


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--start", type=int, default=0)
    args = parser.parse_args()
    begin = time.perf_counter()
    try:
        total = simulate(args.start, args.seeds)
    except AssertionError as e:
        print(f"FAILED: {e}; replay with --start {str(e).split()[1].rstrip(':')} --seeds 1")
        return 1
    words = [f"{name} {getattr(total, name)}" for name in Summary.__dataclass_fields__]
    print("ok: " + ", ".join(words) + f", seconds {time.perf_counter() - begin:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
