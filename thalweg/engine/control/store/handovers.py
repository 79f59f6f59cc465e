"""Prompts computed here for another engine: their ends are reported when the store has their blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from thalweg.engine.control.request import Request
from thalweg.engine.control.store.departures import StoreSaves, Urgent
from thalweg.engine.messages import SequenceFinished


@dataclass(slots=True)
class _Held:
    how: SequenceFinished
    blocks: Urgent
    deadline: float


class Handovers:
    def __init__(self, saves: StoreSaves, clock: Callable[[], float], timeout: float) -> None:
        """timeout: seconds after which an end is reported in any case. The other engine then computes what is missing."""
        self._saves, self._clock, self._timeout = saves, clock, timeout
        self._held: list[_Held] = []

    def __bool__(self) -> bool:
        return bool(self._held)

    def hold(self, request: Request, how: SequenceFinished) -> None:
        """Keep back the end of a request that still has its blocks, which leave before others."""
        places = [(g, block) for node in request.nodes for g, block in enumerate(node.blocks) if block]
        self._held.append(_Held(how, self._saves.expedite(places), self._clock() + self._timeout))

    def drop(self, handles: Sequence[int]) -> list[int]:
        """Forget these ends. Returns the handles of those that were held."""
        dropped = [h.how.handle for h in self._held if h.how.handle in handles]
        self._held = [h for h in self._held if h.how.handle not in dropped]
        return dropped

    def take_done(self) -> list[SequenceFinished]:
        """Ends to report now."""
        self._saves.collect(wait=False)
        now = self._clock()
        done = [h for h in self._held if h.blocks.is_done or now >= h.deadline]
        self._held = [h for h in self._held if h not in done]
        return [h.how for h in done]
