"""The simulator over many ranks: the real scheduler, `RankGroup` and its messages, and a thread that plays all other ranks.

    python tests/rigs/many_ranks.py --ranks 1000 --seeds 1 --start 0

A step ends once every rank has run it, as a collective does. Ranks are killed, crash, stop, hang, or blame another rank, at any
step. The error must name the rank at fault. Then all ranks start anew, and unfinished requests go on, as after the death of an
engine. Tokens and invariants are checked as in `simulator`. All ranks must have received the same steps.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import selectors
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from simulator import Run
from world import World

from thalweg.config import EngineArgs
from thalweg.engine import messages as m
from thalweg.engine.executor.group import RankGroup
from thalweg.engine.executor.launcher import Launcher
from thalweg.engine.executor.member import Member, describe_rank
from thalweg.engine.executor.messages import Beat, Begin, FromRank, Launch, ToRank
from thalweg.engine.ipc.codec import Codec
from thalweg.engine.ipc.pair import pair
from thalweg.engine.ipc.socket import Channel, ChannelClosedError
from thalweg.engine.ipc.steps import write_step
from thalweg.errors import PeerError, ThalwegError
from thalweg.hal.platform import Place

QUICK = ("kill", "crash", "blame")
SLOW = ("stop", "hang")
"""Faults that only a timeout shows."""
TIMEOUT = 10.0


class SimulatedRank:
    """A rank's end of its channel, and its process as `member.RankProcess` has it."""

    def __init__(self, channel: Channel, fd: int, place: Place) -> None:
        self.channel, self.fd, self.place = channel, fd, place
        self.steps, self.code = 0, None
        self.digest = hashlib.blake2b(digest_size=8)
        self.fault: tuple[str, int] | None = None
        """(kind, step before which it happens)."""

    def die(self, code: int) -> None:
        if self.code is None:
            self.code = code
            self.channel.shut()

    def kill(self) -> None:
        self.die(-signal.SIGKILL)

    end = kill

    def wait_for(self, seconds: float) -> int | None:
        return self.code


class SimulatedRanks(Launcher):
    """All ranks but the first. rng draws the fault of this life of the group, out of `kinds`."""

    def __init__(self, args: EngineArgs, rng: random.Random, kinds: Sequence[str]) -> None:
        self._args, self._rng, self._kinds = args, rng, kinds
        self.ranks: list[SimulatedRank] = []
        self.at_fault: SimulatedRank | None = None
        self._over = threading.Event()

    def place(self, places: Sequence[Place]) -> tuple[Place, ...]:
        return tuple(places)

    def start(self, places: Sequence[Place]) -> list[Member]:
        members = []
        for place in places:
            here, there = pair()
            fd = there.fileno()
            rank = SimulatedRank(Channel(there.detach(), Codec[Any](ToRank)), fd, place)
            self.ranks.append(rank)
            members.append(Member(place, describe_rank(place), rank, Channel(here.detach(), Codec[Any](FromRank)), self._args))
        if self._rng.random() < 0.8:
            self.at_fault = self._rng.choice(self.ranks)
            self.at_fault.fault = (self._rng.choice(self._kinds), self._rng.randrange(1, 25))
        threading.Thread(target=self._play, name="all other ranks", daemon=True).start()
        return members

    def release(self) -> None:
        self._over.set()

    def _play(self) -> None:
        with selectors.DefaultSelector() as selector:
            for rank in self.ranks:
                selector.register(rank.fd, selectors.EVENT_READ, rank)
            beat = time.monotonic()
            while not self._over.is_set():
                for key, _ in selector.select(0.1):
                    if not self._serve(key.data):
                        selector.unregister(key.fd)
                if time.monotonic() > beat:
                    beat = time.monotonic() + 0.5
                    self._send_beats(self.ranks)
        for rank in self.ranks:
            rank.channel.shut()
            rank.channel.close()

    def _serve(self, rank: SimulatedRank) -> bool:
        """One message. False: none will follow."""
        try:
            message = rank.channel.receive()
        except (ChannelClosedError, OSError):
            return False
        if isinstance(message, Begin):
            assert (message.rank, message.world) == (rank.place.rank, rank.place.world)
        elif isinstance(message, Launch):
            if rank.fault is not None and rank.steps + 1 >= rank.fault[1]:
                return self._fail(rank, rank.fault[0])
            rank.steps += 1
            rank.digest.update(rank.channel.encode(message))
            self._send_beats([rank])
        return True

    def _fail(self, rank: SimulatedRank, kind: str) -> bool:
        if kind == "crash":
            rank.channel.send(m.EngineFailed("DeviceError", "device: an exchange of memory failed"))
            rank.die(1)
        elif kind == "blame":  # those that waited for it are the first to say so
            for other in self._rng.sample([r for r in self.ranks if r is not rank], 3):
                other.channel.send(m.EngineFailed("PeerError", "a rank closed its connection"))
            rank.kill()
        elif kind == "kill":
            rank.kill()
        return kind == "hang"

    def _send_beats(self, ranks: Sequence[SimulatedRank]) -> None:
        for rank in ranks:
            if rank.fault is not None and rank.fault[0] == "stop" and rank.steps + 1 >= rank.fault[1]:
                continue
            try:
                rank.channel.send(Beat(rank.steps))
            except (ChannelClosedError, OSError):
                continue


class MetStep:
    """A step whose result exists once every rank has run it."""

    def __init__(self, world: RankedWorld, later: Any) -> None:
        self._world, self._later, self._number = world, later, world.launched

    def ready(self) -> bool:
        return self._world.has_met(self._number) and self._later.ready()

    def result(self) -> Any:
        self._world.meet(self._number)
        return self._later.result()


class RankedWorld(World):
    def __init__(self, *args: Any, ranks: int, faults: random.Random, kinds: Sequence[str], **kwargs: Any) -> None:
        self.places = tuple(Place(rank, ranks) for rank in range(ranks))
        self.faults, self.kinds, self.group = faults, kinds, None
        super().__init__(*args, **kwargs)

    def boot(self) -> None:
        if self.group is not None:
            self.group.close()
        args = EngineArgs(model="", hang_timeout=TIMEOUT, heartbeat_timeout=TIMEOUT)
        self.ranks = SimulatedRanks(args, self.faults, self.kinds)
        self.group = RankGroup(args, self.places, self.ranks)
        self.group.ready, self.launched, self.since = True, 0, None
        self.group.stepping = lambda: self.since
        super().boot()

    def launch(self, batch: Any) -> MetStep:
        self.group.send(Launch(write_step(batch)))
        later = super().launch(batch)
        self.launched += 1
        return MetStep(self, later)

    def has_met(self, number: int) -> bool:
        return all(each.steps >= number for each in self.group.members)

    def meet(self, number: int) -> None:
        self.since = time.monotonic()
        while not self.has_met(number):
            if self.group.failure is not None:
                raise self.group.explain(PeerError("the ranks have not met"))
            time.sleep(0.0005)
        self.since = None

    def close(self) -> None:
        self.group.close()


class RankedRun(Run):
    """A seed of the simulator over so many ranks. Its own crashes are left out: ranks crash instead."""

    def __init__(self, seed: int, ranks: int, kinds: Sequence[str]) -> None:
        self._more = {"ranks": ranks, "faults": random.Random(seed + (1 << 41)), "kinds": kinds}
        self.failures: Counter[str] = Counter()
        super().__init__(seed)
        self.faults["crash"] = 0

    def make_world(self, *args: Any, **kwargs: Any) -> World:
        return RankedWorld(*args, **self._more, **kwargs)

    def advance(self) -> None:
        try:
            return super().advance()
        except ThalwegError as e:
            words = str(e)
        wrong = self.world.ranks.at_fault
        assert wrong is not None, f"no rank has failed, but: {words}"
        assert describe_rank(wrong.place) in words, f"{describe_rank(wrong.place)}: {wrong.fault}, but: {words}"
        self.failures[wrong.fault[0]] += 1
        return self.crash()

    def close(self) -> None:
        """Every rank has received the same steps, as far as it came."""
        steps = Counter((r.steps, r.digest.hexdigest()) for r in self.world.ranks.ranks)
        assert len(steps) == 1, steps
        self.world.close()


def simulate_ranks(start: int, seeds: int, ranks: int, kinds: Sequence[str] = QUICK) -> Counter[str]:
    """Failures by kind. AssertionError names the seed, and what was wrong."""
    total: Counter[str] = Counter()
    for seed in range(start, start + seeds):
        run = RankedRun(seed, ranks, kinds)
        try:
            summary = run.go()
            run.close()
        except Exception as e:
            raise AssertionError(f"seed {seed}: {type(e).__name__}: {e}") from e
        finally:
            run.world.close()
        total += run.failures + Counter(requests=summary.requests, tokens=summary.tokens, steps=summary.steps)
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--start", type=int, default=0)
    args = parser.parse_args()
    begin = time.perf_counter()
    total = simulate_ranks(args.start, args.seeds, args.ranks, QUICK + SLOW)
    print(f"ok: {args.ranks} ranks, " + ", ".join(f"{k} {n}" for k, n in total.items()), end="")
    print(f", seconds {time.perf_counter() - begin:.1f}")


if __name__ == "__main__":
    main()
