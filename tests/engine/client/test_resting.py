"""Who waits while the engine is paused or asleep, and what becomes of those under way."""

from __future__ import annotations

import asyncio

import pytest

from thalweg.engine.client.pause import PauseController
from thalweg.errors import RequestError, UnavailableError


class Recorder:
    """Stands for the supervisor; `told` is what it was asked, in order."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.refuses: Exception | None = None

    async def pause(self, yes: bool) -> None:
        self.told.append(f"pause {yes}")

    async def reset_prefix_cache(self) -> bool:
        self.told.append("reset")
        return True

    async def sleep(self, standby_too: bool) -> None:
        if self.refuses:
            raise self.refuses
        self.told.append(f"sleep {standby_too}")

    async def wake_up(self) -> None:
        self.told.append("wake")


class World:
    def __init__(self, *running: str) -> None:
        self.supervisor, self.running, self.aborted = Recorder(), list(running), []
        self.rest = PauseController(self.supervisor, lambda: self.running, self._abort)  # type: ignore[arg-type]

    async def _abort(self, ids: list[str]) -> None:
        self.aborted += ids
        self.running.clear()


async def settled(*tasks: asyncio.Task) -> list[bool]:
    for _ in range(5):
        await asyncio.sleep(0)
    return [t.done() for t in tasks]


@pytest.mark.parametrize(("mode", "aborted"), [("abort", ["a"]), ("keep", [])])
async def test_new_requests_wait_until_it_goes_on(mode: str, aborted: list[str]) -> None:
    world = World("a")
    await world.rest.pause(mode, clear_cache=mode == "abort")
    assert world.aborted == aborted
    assert world.supervisor.told == ["pause True", "reset"][: 1 + (mode == "abort")]
    new = asyncio.create_task(world.rest.wait_admission("b"))
    assert await settled(new) == [False]
    assert world.rest.waiting == 1
    await world.rest.resume()
    await asyncio.wait_for(new, 60)
    assert world.rest.waiting == 0


async def test_wait_lets_those_under_way_finish_first() -> None:
    world = World("a")
    pausing = asyncio.create_task(world.rest.pause("wait", True))
    new = asyncio.create_task(world.rest.wait_admission("b"))
    assert await settled(pausing, new) == [False, False]
    world.running.clear()
    await asyncio.wait_for(pausing, 60)
    assert await settled(new) == [False]
    new.cancel()


async def test_resuming_ends_a_pause_that_still_waits() -> None:
    world = World("a")
    pausing = asyncio.create_task(world.rest.pause("wait", True))
    await settled(pausing)
    await world.rest.resume()
    await asyncio.wait_for(pausing, 60)
    assert world.supervisor.told == ["pause False"]


async def test_an_engine_paused_before_it_slept_is_paused_when_it_wakes() -> None:
    world = World()
    await world.rest.pause("keep", False)
    await world.rest.sleep(2, "keep")
    new = asyncio.create_task(world.rest.wait_admission("b"))
    await world.rest.resume()
    await world.rest.pause("keep", False)
    await world.rest.wake_up()
    assert await settled(new) == [False]
    await world.rest.resume()
    await asyncio.wait_for(new, 60)
    assert world.supervisor.told[1] == "sleep True"


async def test_a_sleep_that_is_refused_leaves_the_gate_open() -> None:
    world = World()
    world.supervisor.refuses = UnavailableError("restarting")
    with pytest.raises(UnavailableError):
        await world.rest.sleep(1, "abort")
    await asyncio.wait_for(world.rest.wait_admission("b"), 1)


async def test_a_request_aborted_at_the_gate_is_told() -> None:
    world = World()
    await world.rest.sleep(1, "abort")
    new = asyncio.create_task(world.rest.wait_admission("b"))
    await settled(new)
    world.rest.abort_waiting("b")
    with pytest.raises(UnavailableError, match="asleep"):
        await new


async def test_wrong_words_are_refused_by_name() -> None:
    rest = World().rest
    for wrong, param in ((rest.pause("stop", True), "mode"), (rest.sleep(0, "abort"), "level"), (rest.sleep(1, "x"), "mode")):
        with pytest.raises(RequestError) as e:
            await wrong
        assert e.value.param == param
    assert not rest.paused
    assert not rest.asleep
