"""Several engines behind one client (data parallelism): each request runs on one engine.

A `Fleet` has the interface of a `Supervisor`, and one supervisor per engine. A request goes to the engine that has seen the
beginning of its prompt, unless that one is much busier than another. A dead engine is replaced and gets its requests back. If
it cannot be replaced, the other engines get them. Engines may be added, and removed again, while requests run.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Any, TypeVar

import msgspec

from thalweg.config import EngineArgs
from thalweg.engine import messages as m
from thalweg.engine.client.process import EngineProcess
from thalweg.engine.client.standby import Standby
from thalweg.engine.client.supervisor import OpenRequests, Supervisor
from thalweg.errors import EngineDeadError, RequestError, ThalwegError, UnavailableError

logger = logging.getLogger(__name__)
T = TypeVar("T")

SPAN = 64
"""Tokens between the remembered prefixes of a prompt."""
SPANS = 64
"""Most remembered prefixes of one prompt."""
REMEMBERED = 1 << 14
"""Most remembered prefixes, the latest ones."""
SLACK, SHARE = 4, 1.5
"""An engine that has seen a prompt gets it while it has at most SLACK sequences more than SHARE times those of the engine
with the fewest."""
LOOK_SECONDS = 0.02
GAUGES = ("running", "waiting", "blocks_used", "blocks_total")
"""Fields of Stats without counters."""


class _EngineRequests:
    """The open requests of one engine."""

    def __init__(self, everything: OpenRequests, mine: dict[int, None]) -> None:
        self._everything, self._mine = everything, mine

    def open_handles(self) -> list[int]:
        return [h for h in self._everything.open_handles() if h in self._mine]

    def resubmit(self, handles: Sequence[int]) -> list[m.EngineRequest]:
        return self._everything.resubmit(handles)


@dataclass(eq=False)
class _Member:
    """One engine of the fleet."""

    number: int
    supervisor: Supervisor = field(init=False)
    open: dict[int, None] = field(default_factory=dict)
    """Handles of the sequences that run here."""
    leaving: bool = False
    """It gets no requests any more, and ends when it has none."""
    latest: m.Stats | None = None
    before: m.Stats | None = None
    """Counters of this engine's earlier processes."""
    lost: bool = False
    """It is no longer replaced."""

    @property
    def serves(self) -> bool:
        return self.stays and not self.supervisor.why_not_ready and not self.supervisor.recovering

    @property
    def stays(self) -> bool:
        return not self.lost and not self.leaving

    def record(self, stats: m.Stats) -> None:
        if self.latest is not None and stats.steps < self.latest.steps:  # a new process counts from 0
            self.before = self.latest if self.before is None else add_stats(self.before, self.latest)
        self.latest = stats

    def total(self) -> m.Stats | None:
        if self.latest is None or self.before is None:
            return self.latest or self.before
        return add_stats(self.latest, without_gauges(self.before))


@dataclass
class Affinity:
    """Maps prefixes of prompts to the engine that has seen them, and so has them in its prefix cache."""

    seen: OrderedDict[int, int] = field(default_factory=OrderedDict)

    def keys(self, request: m.EngineRequest) -> list[int]:
        """One for each span of the prompt, the shortest prefix first. Equal prefixes have equal keys."""
        key, found = hash((request.cache_salt, request.adapter)), []
        for at in range(0, min(request.tokens.size, SPAN * SPANS) - SPAN + 1, SPAN):
            key = hash((key, request.tokens[at : at + SPAN].tobytes()))
            found.append(key)
        return found

    def find(self, keys: Sequence[int]) -> int | None:
        """The engine that has seen the longest prefix."""
        return next((self.seen[k] for k in reversed(keys) if k in self.seen), None)

    def remember(self, keys: Sequence[int], engine: int) -> None:
        for key in keys:
            self.seen[key] = engine
            self.seen.move_to_end(key)
        while len(self.seen) > REMEMBERED:
            self.seen.popitem(last=False)

    def forget(self, engine: int) -> None:
        """The engine ends, or is a new one."""
        for key in [key for key, seen in self.seen.items() if seen == engine]:
            del self.seen[key]


class Fleet:
    """Arguments as for `Supervisor`. args: of each of the engines. on_dead: no engine is left. Everything on one event loop."""

    def __init__(
        self,
        engines: int,
        args: EngineArgs,
        outputs: OpenRequests,
        handles: Iterator[int],
        *,
        on_outputs: Callable[[m.Outputs], None],
        on_convicted: Callable[[int, str], None],
        on_dead: Callable[[ThalwegError], None],
        vocabulary: Callable[[], m.GrammarVocabulary] | None = None,
    ) -> None:
        self._args, self._outputs, self._handles, self._vocabulary = args, outputs, handles, vocabulary
        self._on_outputs, self._on_convicted, self._on_dead = on_outputs, on_convicted, on_dead
        self._affinity = Affinity()
        self._turn = 0
        self._members = [self._make_member(i) for i in range(engines)]
        """By number. Engines that leave are the last ones."""
        self._joining: list[_Member] = []
        """Engines that start, and get no requests yet."""
        self._adapters: dict[bytes, str] = {}
        """Digest -> path of each adapter that every engine has."""
        self._departed: m.Stats | None = None
        """Counters of engines that have left."""
        self._departed_restarts = 0

    def _make_member(self, number: int) -> _Member:
        member = _Member(number)
        member.supervisor = Supervisor(
            self._args, _EngineRequests(self._outputs, member.open), self._handles,
            on_outputs=partial(self._take, member), on_convicted=partial(self._convict, member),
            on_dead=partial(self._lose, member), vocabulary=self._vocabulary,
        )  # fmt: skip
        return member

    # ------------------------------------------------------------------ where requests run

    def choose(self, request: m.EngineRequest) -> int:
        """The number of the engine for a new request."""
        candidates = [i for i, member in enumerate(self._members) if member.serves]
        candidates = candidates or [i for i, member in enumerate(self._members) if member.stays]
        candidates = candidates or [i for i, member in enumerate(self._members) if not member.lost]
        load = {i: len(self._members[i].open) for i in candidates}
        self._turn += 1
        least = min(candidates, key=lambda i: (load[i], (i + self._turn) % len(self._members)))
        keys = self._affinity.keys(request)
        known = self._affinity.find(keys)
        chosen = known if known in load and load[known] <= SLACK + SHARE * load[least] else least
        self._affinity.remember(keys, chosen)
        return chosen

    def submit(self, requests: Sequence[m.EngineRequest]) -> None:
        """As `Supervisor.submit`, of sequences with one prompt."""
        if not requests or all(member.lost for member in self._members):
            return
        member = self._members[self.choose(requests[0])]
        member.open.update(dict.fromkeys(r.handle for r in requests))
        member.supervisor.submit(requests)

    def abort(self, handles: Sequence[int]) -> None:
        for member in self._members:
            mine = [h for h in handles if h in member.open]
            for h in mine:
                del member.open[h]
            member.supervisor.abort(mine)

    # ------------------------------------------------------------------ news of engines

    def _take(self, member: _Member, frame: m.Outputs) -> None:
        frame.engine = member.number
        for ended in frame.finished:
            member.open.pop(ended.handle, None)
        if frame.stats is not None:
            member.record(frame.stats)
            frame.stats = self._sum_stats()
        self._on_outputs(frame)

    def _sum_stats(self) -> m.Stats | None:
        totals = [*self.stats_by_engine().values(), *([] if self._departed is None else [self._departed])]
        return reduce(add_stats, totals) if totals else None

    def _convict(self, member: _Member, handle: int, why: str) -> None:
        member.open.pop(handle, None)
        self._on_convicted(handle, why)

    def _lose(self, member: _Member, why: ThalwegError) -> None:
        """Move its open requests to other engines. Their text does not change."""
        member.lost = True
        if member in self._joining:  # `grow` raises the error
            return
        if all(each.lost for each in self._members):
            self._on_dead(why)
            return
        logger.error(
            "engine %d of %d is lost, and its %d requests go on elsewhere: %s",
            member.number, len(self._members), len(member.open), why,
        )  # fmt: skip
        self._move_requests(member)

    def _move_requests(self, member: _Member) -> None:
        """Continue the open requests of an engine without a process on others."""
        orphans = [h for h in self._outputs.open_handles() if h in member.open]
        member.open.clear()
        for request in self._outputs.resubmit(orphans):
            self.submit([request])

    # ------------------------------------------------------------------ more engines, and fewer

    @property
    def size(self) -> int:
        """Engines that get requests, or will when they are back."""
        return sum(not member.leaving for member in self._members)

    async def grow(self, size: int) -> None:
        """Start engines until there are `size`, in place of lost ones too. They get requests once all have answered a canary.
        Raises the error of the first that does not start. Then none is added."""
        numbers = [i for i in range(size) if i >= len(self._members) or self._members[i].lost]
        self._joining = joining = [self._make_member(i) for i in numbers]
        starts = [asyncio.create_task(EngineProcess.start(self._args, None)) for _ in joining]
        try:
            for member in joining:
                member.supervisor.keep_adapters(self._adapters)
            await asyncio.gather(*(each.supervisor.start(e) for each, e in zip(joining, starts, strict=True)))
            if any(member.supervisor.paused for member in self._members):
                await asyncio.gather(*(each.supervisor.pause(True) for each in joining))
        except BaseException:
            await _end_starts(starts)
            await asyncio.gather(*(each.supervisor.stop() for each in joining))
            raise
        finally:
            self._joining = []
        for member in joining:
            self._affinity.forget(member.number)
            if member.number == len(self._members):
                self._members.append(member)
                continue
            lost, self._members[member.number] = self._members[member.number], member
            member.before = lost.total()
            self._departed_restarts += lost.supervisor.restarts
            await lost.supervisor.stop()

    async def shrink(self, size: int, drain_seconds: float) -> int:
        """End the engines from number `size` on. They get no new requests. After `drain_seconds`, their running requests go on
        at other engines, with the same text. Returns how many did. EngineDeadError if the engines that stay are lost."""
        leaving = self._members[size:]
        for member in leaving:
            member.leaving = True
            self._affinity.forget(member.number)
        until = time.monotonic() + drain_seconds
        try:
            while any(member.open and not member.lost for member in leaving) and time.monotonic() < until:
                await asyncio.sleep(LOOK_SECONDS)
            if not any(member.stays for member in self._members):
                raise EngineDeadError("the engines that were to stay are lost; the others keep their requests")
        except BaseException:
            for member in leaving:
                member.leaving = False
            raise
        await asyncio.gather(*(member.supervisor.stop() for member in leaving))
        moved = sum(len(member.open) for member in leaving)
        for member in leaving:
            if (total := member.total()) is not None:
                total = without_gauges(total)
                self._departed = total if self._departed is None else add_stats(self._departed, total)
            self._departed_restarts += member.supervisor.restarts
        del self._members[size:]
        for member in leaving:
            self._move_requests(member)
        return moved

    # ------------------------------------------------------------------ what others ask

    @property
    def members(self) -> tuple[Supervisor, ...]:
        return tuple(member.supervisor for member in self._members)

    @property
    def pid(self) -> int | None:
        """Of the first engine that has a process."""
        return next((s.pid for s in self.members if s.pid is not None), None)

    @property
    def state(self) -> str:
        """ready if any engine is. Otherwise the state of the first engine that is not lost."""
        states = [member.supervisor.state for member in self._members if member.stays]
        return "ready" if "ready" in states else states[0] if states else "failed"

    @property
    def why_not_ready(self) -> str:
        reasons = [member.supervisor.why_not_ready for member in self._members if member.stays]
        return "" if "" in reasons else reasons[0] if reasons else self._members[0].supervisor.why_not_ready

    @property
    def restarts(self) -> int:
        return self._departed_restarts + sum(s.restarts for s in self.members)

    def stats_by_engine(self) -> dict[int, m.Stats]:
        """Number -> its latest snapshot, with the counters of its earlier processes."""
        return {each.number: total for each in self._members if (total := each.total()) is not None}

    @property
    def recovering(self) -> bool:
        return any(not member.lost and member.supervisor.recovering for member in self._members)

    async def start(self, engine: Awaitable[EngineProcess]) -> EngineProcess:
        """Start all engines. engine: the first. Raises the error of the first failure, and leaves `stop` to the caller."""
        others = [asyncio.create_task(EngineProcess.start(self._args, None)) for _ in self._members[1:]]
        starts = [s.start(e) for s, e in zip(self.members, [engine, *others], strict=True)]
        try:
            return (await asyncio.gather(*starts))[0]
        except BaseException:
            await _end_starts(others)
            raise

    async def control(self, op: str) -> bool:
        return all(await self._each(lambda s: s.control(op)))

    async def load_adapter(self, digest: bytes, path: str) -> None:
        """Load into every engine. RequestError if one rejects it: then none has it."""
        self._adapters[digest] = path
        try:
            await self._each(lambda s: s.load_adapter(digest, path), [each.supervisor for each in self._joining])
        except RequestError:
            self.unload_adapter(digest)
            raise

    def unload_adapter(self, digest: bytes) -> None:
        self._adapters.pop(digest, None)
        for supervisor in [*self._alive(), *(each.supervisor for each in self._joining)]:
            supervisor.unload_adapter(digest)

    async def reset_prefix_cache(self) -> bool:
        return all(await self._each(Supervisor.reset_prefix_cache))

    async def pause(self, yes: bool) -> None:
        await self._each(lambda s: s.pause(yes))

    async def sleep(self, standby_too: bool) -> None:
        """UnavailableError, before any engine has gone to sleep, as in `Supervisor.sleep`."""
        if self._joining or any(member.leaving for member in self._members):
            raise UnavailableError("the number of engines is changing; try again later")
        for s in self._alive():
            if s.state != "ready" or s.recovering:
                raise UnavailableError(s.why_not_ready or "an engine is recovering from a crash; try again later")
        await self._each(lambda s: s.sleep(standby_too))

    async def wake_up(self) -> None:
        await self._each(Supervisor.wake_up)

    async def change_model(self, path: str) -> None:
        """As `Supervisor.change_model`, one engine after another. Those that have changed change back if one cannot."""
        if self._joining or any(member.leaving for member in self._members):
            raise UnavailableError("the number of engines is changing; try again later")
        changed = list[tuple[Supervisor, str]]()
        for supervisor in self._alive():
            before = supervisor.model
            try:
                await supervisor.change_model(path)
            except BaseException:
                for other, old in changed:
                    await other.change_model(old)
                raise
            changed.append((supervisor, before))
        self._args = msgspec.structs.replace(self._args, model=path)

    def adopt_standby(self, standby: Standby) -> None:
        """As `Supervisor.adopt_standby`, for the first engine."""
        self.members[0].adopt_standby(standby)

    def tell(self, vocabulary: m.GrammarVocabulary) -> None:
        for supervisor in self._alive():
            supervisor.tell(vocabulary)

    async def stop(self) -> None:
        await asyncio.gather(*(s.stop() for s in self.members))  # `grow` ends those that start

    def _alive(self) -> list[Supervisor]:
        return [member.supervisor for member in self._members if not member.lost]

    async def _each(self, ask: Callable[[Supervisor], Awaitable[T]], others: Sequence[Supervisor] = ()) -> list[T]:
        """Ask every engine, and others. Raises the first error, once all have answered."""
        answers = await asyncio.gather(*(ask(s) for s in [*self._alive(), *others]), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return [answer for answer in answers if not isinstance(answer, BaseException)]


Engines = Supervisor | Fleet
"""The engine side of one client."""


def add_stats(a: m.Stats, b: m.Stats) -> m.Stats:
    """The sum of two snapshots, field by field."""

    def add_field(name: str) -> Any:
        x, y = getattr(a, name), getattr(b, name)
        if not isinstance(x, list):
            return x + y
        longer, shorter = (x, y) if len(x) >= len(y) else (y, x)
        return [n + (shorter[i] if i < len(shorter) else 0) for i, n in enumerate(longer)]

    return m.Stats(**{name: add_field(name) for name in m.Stats.__struct_fields__})


def without_gauges(stats: m.Stats) -> m.Stats:
    """Its counters, and 0 for all that describes a moment."""
    return msgspec.structs.replace(stats, **dict.fromkeys(GAUGES, 0))


async def _end_starts(starts: Sequence[asyncio.Task[EngineProcess]]) -> None:
    """End engines that start or have started. One that failed to start has ended."""
    for each in starts:
        each.cancel()
        with contextlib.suppress(asyncio.CancelledError, ThalwegError):
            await (await each).stop()


def make_engines(args: EngineArgs, *rest: object, **callbacks: object) -> Engines:
    """The supervisor of one engine, or a fleet of engines whose number is data_parallel_size or may change. Arguments as for
    `Supervisor`."""
    if args.local_engines == 1 and not args.enable_elastic_ep:
        return Supervisor(args, *rest, **callbacks)  # type: ignore[arg-type]
    return Fleet(args.local_engines, args, *rest, **callbacks)  # type: ignore[arg-type]
