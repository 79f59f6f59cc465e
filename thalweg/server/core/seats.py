"""Seats: the right of some sequences to be at the engine, and the choice of seats to free when another tenant waits.

The engine runs `slots` sequences at once. A tenant waits PATIENCE seconds for a seat to become free, then others make room.
Their requests are suspended and go on later with the same text (`engine/client/seats.py`). Three rules, in this order:

1. Tenants with more seats give to tenants with fewer, while that does not reverse the difference (max-min fairness). The
   newest seat goes first: little was computed for it, or nothing.
2. A suspended request replaces a newer one of the same tenant.
3. Where all others hold as few, a tenant with no running sequence gets the seat that was held longest. That seat must
   have been useful: computed for QUANTUM seconds, and WORTH times as long as its prompt took to compute again.

Pure decisions over held seats. Knows no queue, no clock and no engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from thalweg.engine.client.seats import Holder

if TYPE_CHECKING:
    from thalweg.server.core.admission import Ticket

PATIENCE = 0.1
"""Seconds a tenant waits for a seat before others make room. Short answers end within it, and none is suspended."""
QUANTUM = 0.25
"""Seconds of computation, from a first token, that rule 3 leaves to a seat."""
WORTH = 4
"""Rule 3 also leaves a seat this many times the seconds that its prompt took."""


@dataclass(eq=False, slots=True)
class AdmissionSeat:
    """`cost` sequences of a tenant. It waits, is held, or rests while the reader of its answer does not read.
    Implements `engine.client.seats.Seat`."""

    ticket: Ticket
    cost: int
    priority: int
    number: int
    """Order of arrival, also among those that were suspended."""
    turn: asyncio.Future[None]
    """Set when it is first given."""
    on_leave: Callable[[AdmissionSeat], None]
    on_ask: Callable[[AdmissionSeat], None]
    """Callbacks for its reader's `leave` and `ask`."""
    since: float = 0.0
    """Monotonic seconds since when it has waited, or has been held."""
    held: bool = False
    begun: bool = False
    """Was it ever held?"""
    before: float = 0.0
    """Seconds it was held, before this time."""
    holder: Holder | None = field(default=None, repr=False)
    prompts: int = 1
    tokens: int = 0
    """The ticket's places and tokens that it gives back when it is first held."""

    @property
    def tenant(self) -> str:
        return self.ticket.tenant

    @property
    def rank(self) -> tuple[int, int]:
        """The smaller waits less."""
        return self.priority, self.number

    @property
    def runs(self) -> bool:
        """Does the engine compute it? Assumed so without a holder."""
        return self.held and (self.holder is None or self.holder.scheduled_ts is not None)

    def seconds_held(self, now: float) -> float:
        return self.before + (now - self.since if self.held else 0.0)

    def attach(self, holder: Holder) -> None:
        self.holder = holder

    def leave(self) -> None:
        self.on_leave(self)

    def ask(self) -> None:
        self.on_ask(self)


def choose_victims(
    seats: Iterable[AdmissionSeat], taker: AdmissionSeat, slots: int, crowded: bool, now: float
) -> list[AdmissionSeat] | None:
    """The seats to take so that `taker` can run. None: it can run without, or the rules do not free enough. seats: all held
    ones, the oldest grant first: the engine begins them in that order. slots: sequences that run there at once. crowded:
    sequences wait there although slots are free, so a running one must leave. now: monotonic seconds."""
    held = list(seats)
    if taker.held:  # those behind it are not in its way
        place = held.index(taker)
        held = [s for i, s in enumerate(held) if i <= place or s.runs]
        need = sum(s.cost for s in held) - slots
        if crowded:
            need = max(need, 1 + sum(s.cost for s in held[:place] if not s.runs))
    else:
        need = sum(s.cost for s in held) + taker.cost - slots
    of: dict[str, int] = {}
    for seat in held:
        of[seat.tenant] = of.get(seat.tenant, 0) + seat.cost
    mine = of.get(taker.tenant, 0) + (0 if taker.held else taker.cost)
    movable = [s for s in held if s.holder is not None and s.priority >= taker.priority and s is not taker]
    chosen: list[AdmissionSeat] = []
    if need <= 0:
        return None

    def take(seat: AdmissionSeat) -> None:
        nonlocal need
        need -= seat.cost
        of[seat.tenant] -= seat.cost
        movable.remove(seat)
        chosen.append(seat)

    while need > 0 and (others := [s for s in movable if s.tenant != taker.tenant]):
        most = max(of[s.tenant] for s in others)
        newest = next(s for s in reversed(others) if of[s.tenant] == most)
        if of[newest.tenant] - newest.cost < mine:
            break
        take(newest)
    for seat in reversed(movable.copy()) if taker.begun else ():
        if need > 0 and seat.tenant == taker.tenant and seat.number > taker.number:
            take(seat)
    if not any(s.runs for s in held if s.tenant == taker.tenant):
        for seat in movable.copy():
            if need > 0 and seat.tenant != taker.tenant and _was_useful(seat, now):
                take(seat)
    return chosen if need <= 0 else None


def _was_useful(seat: AdmissionSeat, now: float) -> bool:
    if seat.holder is None or (begun := seat.holder.scheduled_ts) is None or (first := seat.holder.first_token) is None:
        return False
    return now - first >= max(QUANTUM, WORTH * (first - begun))
