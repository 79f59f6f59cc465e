"""Residency: no request fails, memory is never exceeded, and models that wait are loaded in turn."""

from __future__ import annotations

import asyncio
import random

import pytest

from thalweg.server.router.residency import LOADED, SLEEPING, UNLOADED, Residency, Resident


class Model(Resident):
    """Loads in no time. `residency` is set to check the budget at every load."""

    residency: Residency
    fault: Exception | None = None

    async def load(self):
        await asyncio.sleep(0)
        if self.fault is not None:
            raise self.fault

    async def unload(self):
        assert not self.open, "a model with open requests was unloaded"
        await asyncio.sleep(0)


def make(costs, budget=100, max_loaded=None, **options):
    models = [Model(f"m{i}", {"cpu": cost}, **options) for i, cost in enumerate(costs)]
    return models, Residency(models, {"cpu": budget}, max_loaded)


async def use(residency, model, steps=1):
    await residency.enter(model)
    for _ in range(steps):
        assert model.state == LOADED
        await asyncio.sleep(0)
    residency.leave(model)


@pytest.mark.parametrize(
    ("costs", "budget", "most"), [([50] * 5, 100, None), ([10] * 5, 100, 2), ([60, 30, 30, 90, 5], 100, None)]
)
def test_random_requests_are_all_served_within_the_budget(costs, budget, most):
    async def run():
        models, residency = make(costs, budget, most)
        dice, served = random.Random(1), 0

        async def one():
            nonlocal served
            await asyncio.sleep(dice.random() / 50)
            model = dice.choice(models)
            await residency.enter(model)
            present = [m for m in models if m.state != UNLOADED]
            assert sum(next(iter(m.cost.values())) for m in present) <= budget
            assert most is None or len(present) <= most
            for _ in range(dice.randrange(4)):
                await asyncio.sleep(0)
            residency.leave(model)
            served += 1

        async with asyncio.timeout(60):
            await asyncio.gather(*(one() for _ in range(200)))
        assert served == 200
        assert not any(m.open or m.waiters for m in models)

    asyncio.run(run())


def test_the_least_recently_used_idle_model_makes_room():
    async def run():
        (a, b, c), residency = make([50] * 3)
        for model in (a, b, a, c):
            await use(residency, model)
        assert (a.state, b.state, c.state) == (LOADED, UNLOADED, LOADED)

    asyncio.run(run())


def test_a_pinned_model_stays():
    async def run():
        (a, b, c), residency = make([50] * 3)
        a.pinned = True
        for model in (a, b, c):
            await use(residency, model)
        assert (a.state, b.state, c.state) == (LOADED, UNLOADED, LOADED)

    asyncio.run(run())


def test_a_busy_model_is_drained_for_one_that_waits_and_comes_back():
    """Under a steady load on one model, another gets its turn, and the first one's new requests wait behind it."""

    async def run():
        (a, b), residency = make([100, 100])
        order = []

        async def request(model, hold):
            await residency.enter(model)
            order.append(model.name)
            await hold.wait()
            residency.leave(model)

        first, then = asyncio.Event(), asyncio.Event()
        then.set()
        old = asyncio.create_task(request(a, first))
        await asyncio.sleep(0.01)
        a.load_seconds = 0.0  # however long it took: its tenure is over
        other = asyncio.create_task(request(b, then))
        await asyncio.sleep(0.01)
        late = asyncio.create_task(request(a, then))
        await asyncio.sleep(0.01)
        assert order == ["m0"], "a new request of the busy model passed the model that waits"
        first.set()
        async with asyncio.timeout(60):
            await asyncio.gather(old, other, late)
        assert order == ["m0", "m1", "m0"]

    asyncio.run(run())


def test_a_request_that_leaves_while_it_waits_frees_the_drained_model():
    async def run():
        (a, b), residency = make([100, 100])
        await residency.enter(a)
        a.load_seconds = 0.0  # however long it took: its tenure is over
        waits = asyncio.create_task(residency.enter(b))
        await asyncio.sleep(0.01)
        assert a.draining
        waits.cancel()
        await asyncio.gather(waits, return_exceptions=True)
        assert not a.draining
        await use(residency, a)
        assert a.open == 1

    asyncio.run(run())


def test_an_idle_model_is_unloaded_after_its_time():
    async def run():
        (a,), residency = make([50], idle_seconds=0.01)
        await use(residency, a)
        async with asyncio.timeout(60):
            while a.state != UNLOADED:
                await asyncio.sleep(0.005)
        await use(residency, a)
        assert residency.loads == 2

    asyncio.run(run())


def test_a_load_that_fails_fails_its_requests_only_and_is_tried_again():
    async def run():
        (a, b), residency = make([100, 100])
        a.fault = ValueError("no such file")
        results = await asyncio.gather(residency.enter(a), residency.enter(b), return_exceptions=True)
        assert isinstance(results[0], ValueError)
        assert results[1] is None
        residency.leave(b)
        a.fault = None
        await use(residency, a)

    asyncio.run(run())


def test_requests_of_a_sleeping_model_wait_until_it_is_woken():
    async def run():
        (a,), residency = make([50])
        await use(residency, a)
        await residency.sleep(a, a.unload)
        assert a.status == SLEEPING
        waits = asyncio.create_task(use(residency, a))
        await asyncio.sleep(0.01)
        assert not waits.done()
        await residency.wake_up(a)
        async with asyncio.timeout(60):
            await waits
        assert a.state == LOADED

    asyncio.run(run())
