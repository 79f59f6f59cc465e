"""Who gives up a seat when another tenant waits: shares, order, and that nothing is lost or moved to and fro."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from thalweg.server.core.admission import Admission
from thalweg.server.core.seats import PATIENCE, QUANTUM, WORTH

AGES = QUANTUM + 10
"""Seconds after which nobody is young."""


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


class World:
    """An engine of `slots` slots that starts sequences in the order in which it gets them, and the requests that share it."""

    def __init__(self, slots: int = 4, ahead: int = 2, most: int = 1000) -> None:
        self.clock = Clock()
        self.slots, self.recovering, self.blocks, self.prompt_seconds = slots, False, 10**9, 0.0
        self.admission = Admission(slots + ahead, most, 10**9, slots, crowded=self.crowded, clock=self.clock)
        self.requests: dict[str, Request] = {}
        self.engine: list[Request] = []
        """What it was given, in order."""
        self.suspensions: list[str] = []

    def crowded(self) -> bool:
        running = self.running()
        return len(running) < len(self.engine) and sum(r.cost for r in running) < self.slots

    def running(self) -> list[Request]:
        """Those that fit, from the first."""
        found: list[Request] = []
        for r in self.engine:
            if sum(f.cost for f in found) + r.cost > min(self.slots, self.blocks):
                break
            found.append(r)
        for r in found:
            if r.scheduled_ts is None:
                r.scheduled_ts, r.first_token = self.clock.now, self.clock.now + self.prompt_seconds
        return found

    async def add(self, *names: str, cost: int = 1, priority: int = 0) -> None:
        """A request of the tenant that the name's first letter is."""
        for name in names:
            self.requests[name] = request = Request(self, name, cost, priority)
            request.task = asyncio.create_task(request.run())
            await settle()

    async def end(self, *names: str) -> None:
        for name in names:
            self.requests.pop(name).ended.set()
            await settle()

    async def after(self, seconds: float) -> None:
        """Time goes by, and the admission looks."""
        self.running()
        self.clock.now += seconds
        self.admission.look_around()
        await settle()
        self.running()

    def names(self) -> list[str]:
        """Who runs."""
        return sorted(r.name for r in self.running())

    def shares(self) -> dict[str, int]:
        """Sequences of each tenant that run."""
        count: Counter[str] = Counter()
        for r in self.running():
            count[r.name[0]] += r.cost
        return dict(count)

    async def close(self) -> None:
        await self.end(*self.requests)
        a = self.admission
        assert (a.running, a.places, a.tokens, a.waiting) == (0, 0, 0, 0)
        assert (a._held, a._seats, a._at, self.engine) == ({}, {}, {}, [])


class Request:
    """Its own holder."""

    def __init__(self, world: World, name: str, cost: int, priority: int) -> None:
        self.world, self.name, self.cost, self.priority = world, name, cost, priority
        self.ended = asyncio.Event()
        self.scheduled_ts: float | None = None
        self.first_token: float | None = None
        self.seat = None

    async def run(self) -> None:
        ticket = self.world.admission.enter(self.name[0])
        try:
            async with self.world.admission.turn(ticket, self.cost, 0, self.priority) as self.seat:
                self.seat.attach(self)
                self.cost = self.seat.cost
                self.resume()
                await self.ended.wait()
        finally:
            if self in self.world.engine:
                self.world.engine.remove(self)
            ticket.close()

    def suspend(self) -> bool:
        if self.world.recovering:
            return False
        self.world.engine.remove(self)
        self.world.suspensions.append(self.name)
        self.scheduled_ts = self.first_token = None
        return True

    def resume(self) -> None:
        assert self not in self.world.engine
        self.world.engine.append(self)
        self.world.running()

    def stall(self) -> None:
        self.suspend()
        self.seat.leave()

    def read(self) -> None:
        self.seat.ask()


async def test_the_newest_of_who_has_most_makes_room_for_another():
    world = World(slots=4, ahead=2)
    await world.add("h0", "h1", "h2", "h3", "h4", "h5", "h6")
    await world.after(AGES)
    assert world.suspensions == []  # alone it may have all
    await world.add("g0")
    await world.after(PATIENCE / 2)
    assert world.suspensions == []
    await world.after(PATIENCE)
    assert world.names() == ["g0", "h0", "h1", "h2"]
    assert world.suspensions == ["h5", "h4", "h3"]  # two of them had not begun
    await world.end("g0")
    assert world.names() == ["h0", "h1", "h2", "h3"]
    await world.end("h0")
    assert world.names() == ["h1", "h2", "h3", "h4"]  # in their order, before those that never ran
    await world.close()


async def test_seats_come_to_equal_shares_and_then_stay():
    world = World(slots=6, ahead=3)
    for tenant in "abc":
        await world.add(*(f"{tenant}{i}" for i in range(9)))
    for _ in range(20):
        await world.after(PATIENCE)
    assert world.shares() == {"a": 2, "b": 2, "c": 2}
    before = len(world.suspensions)
    for _ in range(50):
        await world.after(AGES)
    assert len(world.suspensions) == before
    await world.close()


async def test_who_wants_less_than_a_share_gets_it_and_the_others_have_the_rest():
    world = World(slots=8, ahead=2)
    await world.add(*(f"h{i}" for i in range(20)))
    await world.add("g0", "j0", "j1", "j2", "j3", "j4")
    for _ in range(20):
        await world.after(PATIENCE)
    shares = world.shares()
    assert shares["g"] == 1
    assert {shares["h"], shares["j"]} == {3, 4}
    await world.close()


async def test_a_tenant_with_one_seat_is_not_robbed_for_one_with_a_seat():
    world = World(slots=2, ahead=1)
    await world.add("a0", "b0", "b1", "b2")
    for _ in range(20):
        await world.after(AGES)
    assert "a0" in world.names()
    assert "a0" not in world.suspensions
    await world.close()


async def test_more_tenants_than_slots_take_turns_and_each_turn_is_worth_it():
    world = World(slots=2, ahead=2)
    await world.add(*(f"{tenant}0" for tenant in "abcdefg"))
    ran: Counter[str] = Counter()
    looks = 0
    while min((ran[t] for t in "abcdefg"), default=0) < 20:
        ran.update(world.shares())
        await world.after(PATIENCE / 2)
        looks += 1
        assert looks < 2000, "somebody starves"
    stays = looks * 2 / len(world.suspensions)
    assert stays * PATIENCE / 2 >= QUANTUM
    assert max(ran.values()) <= 2 * min(ran.values())
    await world.close()


async def test_a_sequence_that_took_long_to_begin_is_left_longer():
    world = World(slots=1, ahead=0)
    world.prompt_seconds = 3.0
    await world.add("a0", "b0")
    await world.after(3.0 + WORTH * 3.0 - 1)
    assert world.names() == ["a0"]
    await world.after(2)
    assert world.names() == ["b0"]
    await world.close()


async def test_who_waits_for_a_slot_at_the_engine_is_hungry_too():
    """There was a place in the window, but every slot is taken for long."""
    world = World(slots=2, ahead=2)
    await world.add("h0", "h1", "h2")
    await world.add("g0")
    assert world.names() == ["h0", "h1"]
    assert world.requests["g0"].seat.held
    await world.after(PATIENCE)
    assert world.names() == ["g0", "h0"]
    await world.close()


async def test_a_full_cache_is_shared_as_slots_are():
    """Slots are free, and nobody can begin for want of cache."""
    world = World(slots=8, ahead=2)
    world.blocks = 3
    await world.add(*(f"h{i}" for i in range(6)), "g0")
    assert world.names() == ["h0", "h1", "h2"]
    await world.after(PATIENCE)
    assert world.names() == ["g0", "h0", "h1"]
    await world.close()


async def test_only_those_in_the_way_are_suspended():
    """Who waits behind another takes nothing from it."""
    world = World(slots=8, ahead=2)
    world.blocks = 2
    await world.add("h0", "h1", "h2", "g0", "h3")
    await world.after(PATIENCE)
    assert world.suspensions == ["h2", "h1"]
    assert world.names() == ["g0", "h0"]
    await world.close()


async def test_an_unread_answer_gives_its_seat_to_anybody_and_gets_it_back_first():
    world = World(slots=2, ahead=0)
    await world.add("h0", "h1", "h2", "h3", "h4")
    world.requests["h0"].stall()
    world.requests["h1"].stall()
    await settle()
    assert world.names() == ["h2", "h3"]
    assert world.admission.places == 3  # h4, and two that wait again
    world.requests["h0"].read()
    await world.end("h2")
    assert world.names() == ["h0", "h3"]
    await world.close()


async def test_an_older_request_of_the_same_tenant_takes_its_place_back():
    """Else one that was not read for a moment would stand still for a whole generation."""
    world = World(slots=2, ahead=0)
    await world.add("h0", "h1", "h2")
    world.requests["h0"].stall()
    await settle()
    assert world.names() == ["h1", "h2"]
    world.requests["h0"].read()
    await world.after(PATIENCE)
    assert world.names() == ["h0", "h1"]
    await world.after(AGES)
    assert world.suspensions == ["h0", "h2"]  # the newer one waits
    await world.close()


async def test_requests_without_a_seat_count_in_the_queue():
    """So there is a bound to how many a tenant leaves unread."""
    world = World(slots=2, ahead=0, most=9)
    for i in range(40):
        await world.add(f"h{i}")
        request = world.requests[f"h{i}"]
        if request.task.done():  # refused
            assert request.task.exception().status == 429
            del world.requests[f"h{i}"]
        else:
            request.stall()
    assert 5 <= len(world.requests) <= 11
    await world.add("g0")
    assert world.names() == ["g0"]
    await world.close()


async def test_the_urgent_are_not_suspended_for_others():
    world = World(slots=2, ahead=0)
    await world.add("h0", "h1", priority=-1)
    await world.add("g0")
    await world.after(AGES)
    assert world.names() == ["h0", "h1"]
    await world.close()


async def test_nothing_moves_while_the_engine_recovers():
    world = World(slots=2, ahead=0)
    await world.add("h0", "h1", "g0")
    world.recovering = True
    await world.after(AGES)
    assert world.names() == ["h0", "h1"]
    world.recovering = False
    await world.after(PATIENCE)
    assert world.names() == ["g0", "h0"]
    await world.close()


async def test_it_looks_by_itself_while_somebody_waits_and_no_longer():
    world = World(slots=1, ahead=0)
    await world.add("h0", "h1", "g0")
    world.running()
    world.clock.now += AGES
    for _ in range(6000):
        if world.names() == ["g0"]:
            break
        await asyncio.sleep(0.01)
    assert world.names() == ["g0"]
    await world.close()
    for _ in range(6000):
        if world.admission._looking is None:
            break
        await asyncio.sleep(0.01)
    assert world.admission._looking is None


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.sampled(7)
async def test_nothing_leaks_whoever_stalls_reads_or_leaves_when(seed):
    rng = random.Random(seed)
    world = World(slots=rng.choice([1, 3, 8]), ahead=2, most=60)
    stalled: set[str] = set()
    for i in range(300):
        act, names = rng.random(), list(world.requests)
        if act < 0.4:
            name = f"{rng.choice('abc')}{i}"
            await world.add(name, cost=rng.choice([1, 1, 2]), priority=rng.choice([0, 0, 1]))
            if world.requests[name].task.done():  # refused
                assert world.requests.pop(name).task.exception().status == 429
        elif act < 0.5 and names:
            name = rng.choice(names)
            world.requests[name].task.cancel()
            del world.requests[name]
        elif act < 0.6 and names:
            await world.end(rng.choice(names))
        elif act < 0.75 and names:
            request = world.requests[rng.choice(names)]
            if request in world.engine:
                request.stall()
                stalled.add(request.name)
        elif act < 0.85 and stalled & world.requests.keys():
            name = rng.choice(sorted(stalled & world.requests.keys()))
            stalled.discard(name)
            world.requests[name].read()
        else:
            await world.after(rng.choice([0.01, PATIENCE, AGES]))
        if rng.random() < 0.5:
            await settle()
        a = world.admission
        assert sum(a._at.values()) == a.running == sum(s.cost for s in a._seats) <= a.window
        assert sum(r.cost for r in world.engine) <= a.running
        assert a.places >= 0
    await settle()
    await world.close()
