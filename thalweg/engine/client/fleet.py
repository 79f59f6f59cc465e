"""Several engines behind one client (data parallelism): each request runs on one engine.

A `Fleet` has the interface of a `Supervisor`, and one supervisor per engine. A request goes to the engine that has seen the
beginning of its prompt, unless that one is much busier than another. A dead engine is replaced and gets its requests back. If
it cannot be replaced, the other engines get them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import msgspec

from thalweg.config import EngineArgs
from thalweg.engine import messages as m
from thalweg.engine.client.process import EngineProcess
from thalweg.engine.client.supervisor import OpenRequests, Supervisor
from thalweg.errors import RequestError, ThalwegError, UnavailableError

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


@dataclass
class _Member:
    """One engine of the fleet."""

    supervisor: Supervisor
    open: dict[int, None]
    """Handles of the sequences that run here."""
    latest: m.Stats | None = None
    before: m.Stats | None = None
    """Counters of this engine's earlier processes."""
    lost: bool = False
    """It is no longer replaced."""

    @property
    def serves(self) -> bool:
        return not self.lost and not self.supervisor.why_not_ready and not self.supervisor.recovering

    def record(self, stats: m.Stats) -> None:
        if self.latest is not None and stats.steps < self.latest.steps:  # a new process counts from 0
            self.before = self.latest if self.before is None else add_stats(self.before, self.latest)
        self.latest = stats

    def total(self) -> m.Stats | None:
        if self.latest is None or self.before is None:
            return self.latest
        return add_stats(self.latest, msgspec.structs.replace(self.before, **dict.fromkeys(GAUGES, 0)))


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


class Fleet:
    """Arguments as for `Supervisor`. args: of each engine. on_dead: no engine is left. Everything on one event loop."""

    def __init__(
        self,
        args: Sequence[EngineArgs],
        outputs: OpenRequests,
        handles: Iterator[int],
        *,
        on_outputs: Callable[[m.Outputs], None],
        on_convicted: Callable[[int, str], None],
        on_dead: Callable[[ThalwegError], None],
        vocabulary: Callable[[], m.GrammarVocabulary] | None = None,
    ) -> None:
        self._args, self._outputs = tuple(args), outputs
        self._on_outputs, self._on_convicted, self._on_dead = on_outputs, on_convicted, on_dead
        self._affinity = Affinity()
        self._members: list[_Member] = []
        self._turn = 0
        for i, each in enumerate(self._args):
            mine: dict[int, None] = {}
            supervisor = Supervisor(
                each, _EngineRequests(outputs, mine), handles, on_outputs=partial(self._take, i),
                on_convicted=partial(self._convict, i),
                on_dead=partial(self._lose, i), vocabulary=vocabulary,
            )  # fmt: skip
            self._members.append(_Member(supervisor, mine))

    # ------------------------------------------------------------------ where requests run

    def choose(self, request: m.EngineRequest) -> int:
        """The number of the engine for a new request."""
        candidates = [i for i, member in enumerate(self._members) if member.serves]
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

    def _take(self, i: int, frame: m.Outputs) -> None:
        frame.engine, member = i, self._members[i]
        for ended in frame.finished:
            member.open.pop(ended.handle, None)
        if frame.stats is not None:
            member.record(frame.stats)
            totals = [total for each in self._members if (total := each.total()) is not None]
            frame.stats = totals[0]
            for more in totals[1:]:
                frame.stats = add_stats(frame.stats, more)
        self._on_outputs(frame)

    def _convict(self, i: int, handle: int, why: str) -> None:
        self._members[i].open.pop(handle, None)
        self._on_convicted(handle, why)

    def _lose(self, i: int, why: ThalwegError) -> None:
        """Move its open requests to other engines. Their text does not change."""
        member = self._members[i]
        member.lost = True
        if all(each.lost for each in self._members):
            self._on_dead(why)
            return
        orphans = [h for h in self._outputs.open_handles() if h in member.open]
        member.open.clear()
        logger.error(
            "engine %d of %d is lost, and its %d requests go on elsewhere: %s", i, len(self._members), len(orphans), why
        )
        for request in self._outputs.resubmit(orphans):
            self.submit([request])

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
        states = [member.supervisor.state for member in self._members if not member.lost]
        return "ready" if "ready" in states else states[0] if states else "failed"

    @property
    def why_not_ready(self) -> str:
        reasons = [member.supervisor.why_not_ready for member in self._members if not member.lost]
        return "" if "" in reasons else reasons[0] if reasons else self._members[0].supervisor.why_not_ready

    @property
    def restarts(self) -> int:
        return sum(s.restarts for s in self.members)

    @property
    def recovering(self) -> bool:
        return any(not member.lost and member.supervisor.recovering for member in self._members)

    async def start(self, engine: Awaitable[EngineProcess]) -> EngineProcess:
        """Start all engines. engine: the first. Raises the error of the first failure, and leaves `stop` to the caller."""
        others = [asyncio.create_task(EngineProcess.start(args, None)) for args in self._args[1:]]
        starts = [s.start(e) for s, e in zip(self.members, [engine, *others], strict=True)]
        try:
            return (await asyncio.gather(*starts))[0]
        except BaseException:
            for other in others:
                other.cancel()
                with contextlib.suppress(asyncio.CancelledError, ThalwegError):
                    await (await other).stop()
            raise

    async def control(self, op: str) -> bool:
        return all(await self._each(lambda s: s.control(op)))

    async def load_adapter(self, digest: bytes, path: str) -> None:
        """Load into every engine. RequestError if one rejects it: then none has it."""
        try:
            await self._each(lambda s: s.load_adapter(digest, path))
        except RequestError:
            self.unload_adapter(digest)
            raise

    def unload_adapter(self, digest: bytes) -> None:
        for supervisor in self._alive():
            supervisor.unload_adapter(digest)

    async def reset_prefix_cache(self) -> bool:
        return all(await self._each(Supervisor.reset_prefix_cache))

    async def pause(self, yes: bool) -> None:
        await self._each(lambda s: s.pause(yes))

    async def sleep(self, standby_too: bool) -> None:
        """UnavailableError, before any engine has gone to sleep, as in `Supervisor.sleep`."""
        for s in self._alive():
            if s.state != "ready" or s.recovering:
                raise UnavailableError(s.why_not_ready or "an engine is recovering from a crash; try again later")
        await self._each(lambda s: s.sleep(standby_too))

    async def wake_up(self) -> None:
        await self._each(Supervisor.wake_up)

    def tell(self, vocabulary: m.GrammarVocabulary) -> None:
        for supervisor in self._alive():
            supervisor.tell(vocabulary)

    async def stop(self) -> None:
        await asyncio.gather(*(s.stop() for s in self.members))

    def _alive(self) -> list[Supervisor]:
        return [member.supervisor for member in self._members if not member.lost]

    async def _each(self, ask: Callable[[Supervisor], Awaitable[T]]) -> list[T]:
        """Ask every engine. Raises the first error, once all have answered."""
        answers = await asyncio.gather(*(ask(s) for s in self._alive()), return_exceptions=True)
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


def make_engines(args: EngineArgs, *rest: object, **callbacks: object) -> Engines:
    """The supervisor of one engine, or a fleet of data_parallel_size engines. Arguments as for `Supervisor`."""
    if args.local_engines == 1:
        return Supervisor(args, *rest, **callbacks)  # type: ignore[arg-type]
    return Fleet([args] * args.local_engines, *rest, **callbacks)  # type: ignore[arg-type]
