"""Shared places: whoever asks for more waits for itself, not others for it."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from thalweg.host.turns import FairSemaphore


async def queue_up(turns: FairSemaphore, order: list[str], *tenants: str) -> list[asyncio.Task[None]]:
    """Waiters in this order; each notes its turn and gives it back at once."""

    async def one(tenant: str, number: int) -> None:
        async with turns.turn(tenant):
            order.append(f"{tenant}{number}")

    tasks = [asyncio.create_task(one(t, i)) for i, t in enumerate(tenants)]
    await asyncio.sleep(0)
    return tasks


async def test_tenants_take_turns_and_each_ones_waiters_keep_their_order():
    turns, order = FairSemaphore(), list[str]()
    async with turns.turn("a"):
        tasks = await queue_up(turns, order, "a", "a", "a", "b", "c", "b")
    await asyncio.gather(*tasks)
    assert order == ["a0", "b3", "c4", "a1", "b5", "a2"]
    assert turns.idle


async def test_a_large_cost_is_not_passed_by_small_ones():
    turns, order = FairSemaphore(4), list[str]()

    async def one(name: str, cost: int) -> None:
        async with turns.turn(name, cost):
            order.append(name)

    async with turns.turn("x", 3):
        tasks = [asyncio.create_task(one("large", 9)), asyncio.create_task(one("small", 1))]
        await asyncio.sleep(0)
        assert order == []
    await asyncio.gather(*tasks)
    assert order == ["large", "small"]


async def test_with_a_spare_who_holds_nothing_never_waits():
    turns = FairSemaphore(2, spare=True)
    taken = [await turns.take("hog"), await turns.take("hog")]
    third = asyncio.create_task(turns.take("hog"))
    await asyncio.sleep(0)
    assert not third.done()
    guest = asyncio.create_task(turns.take("guest"))
    await asyncio.sleep(0)
    assert guest.done()
    again = asyncio.create_task(turns.take("guest"))
    await asyncio.sleep(0)
    assert not again.done(), "one more, not as many as it likes"
    turns.give("guest")
    await asyncio.sleep(0)
    assert again.done()
    assert not third.done()
    for tenant in ("guest", *["hog"] * len(taken)):
        turns.give(tenant)
    await third
    turns.give("hog")
    assert turns.idle


async def test_who_is_cancelled_leaves_nothing():
    turns, order = FairSemaphore(), list[str]()
    await turns.take("a")
    tasks = await queue_up(turns, order, "b", "b", "c")
    tasks[0].cancel()
    await asyncio.sleep(0)
    turns.give("a")  # called in the same moment as it is cancelled
    tasks[1].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order == ["c2"]
    assert turns.idle


async def test_a_place_is_held_until_its_thread_is_done():
    """Otherwise clients that leave could have any number of threads."""
    turns, go = FairSemaphore(), threading.Event()
    with ThreadPoolExecutor(4) as pool:
        first = asyncio.create_task(turns.run("a", pool, go.wait))
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        second = asyncio.create_task(turns.run("b", pool, lambda: "b"))
        await asyncio.sleep(0.01)
        early, held = second.done(), not turns.idle
        go.set()
        assert await second == "b"
        assert (early, held) == (False, True)
    await asyncio.sleep(0)
    assert turns.idle


async def test_what_the_thread_raises_is_raised():
    def fail() -> None:
        raise ValueError("x")

    turns = FairSemaphore()
    with ThreadPoolExecutor(1) as pool, pytest.raises(ValueError, match="x"):
        await turns.run("a", pool, fail)
    assert turns.idle
