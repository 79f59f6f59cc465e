"""A request of many prompts or choices, divided into parts with separate turns at the engine.

The next part asks for its turn when the one before has its turn. A request of 4,000 choices therefore has one place in its
tenant's queue, and other requests of that tenant come between. A part does not ask while the answers before it are unread.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from thalweg.outputs import RequestOutput
from thalweg.server.core.admission import Admission

MOST_UNREAD = 64
"""Outputs of all parts that wait for their reader. Beyond it each part merges its own, and stops when they are many."""


class ChoiceRange(NamedTuple):
    """Choices `first` to `first + choices - 1` of one prompt."""

    prompt: int
    first: int
    choices: int


OnTurn = Callable[[], None]
"""Called by a part when it may run."""


def divide(prompts: int, choices: int, most: int) -> list[ChoiceRange]:
    """The parts: each prompt with at most `most` of its choices."""
    return [ChoiceRange(i, first, min(most, choices - first)) for i in range(prompts) for first in range(0, choices, most)]


@asynccontextmanager
async def spread(
    admission: Admission,
    parts: Sequence[ChoiceRange],
    run: Callable[[ChoiceRange, OnTurn], Awaitable[None]],
    room: asyncio.Event | None = None,
) -> AsyncIterator[asyncio.Future[None]]:
    """Runs `run(part, on_turn)` for each part. room: no part begins while it is not set. The future ends with the last part, or
    raises the first error. Leaving the block cancels running parts."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    tasks: list[asyncio.Task[None]] = []
    behind, left = len(parts), len(parts)

    async def follow(part: ChoiceRange, turned: asyncio.Event) -> None:
        nonlocal left
        try:
            await run(part, turned.set)
        except Exception as e:
            if not done.done():
                done.set_exception(e)
        finally:
            turned.set()
        left -= 1
        if not left and not done.done():
            done.set_result(None)

    async def feed() -> None:
        nonlocal behind
        for part in parts:
            if room is not None:
                await room.wait()
            behind -= 1
            admission.behind -= 1
            turned = asyncio.Event()
            tasks.append(asyncio.create_task(follow(part, turned)))
            await turned.wait()

    admission.behind += behind
    feeding = asyncio.create_task(feed())
    try:
        yield done
    finally:
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        admission.behind -= behind
        if done.done():
            done.exception()  # a caller that leaves early does not retrieve it


async def run_all(
    admission: Admission, parts: Sequence[ChoiceRange], last: Callable[[ChoiceRange, OnTurn], Awaitable[RequestOutput]]
) -> list[RequestOutput]:
    """Every prompt's final output, in order. The first failure cancels the rest. last: the final output of a part."""
    outputs: dict[ChoiceRange, RequestOutput] = {}

    async def run(part: ChoiceRange, on_turn: OnTurn) -> None:
        outputs[part] = await last(part, on_turn)

    async with spread(admission, parts, run) as done:
        await done
    whole: dict[int, RequestOutput] = {}
    for part in parts:
        whole.setdefault(part.prompt, outputs[part]).outputs.extend(outputs[part].outputs if part.first else ())
    return list(whole.values())


async def stream_all(
    admission: Admission,
    parts: Sequence[ChoiceRange],
    outputs: Callable[[ChoiceRange, OnTurn], AsyncGenerator[RequestOutput, None]],
) -> AsyncGenerator[tuple[int, RequestOutput], None]:
    """(prompt index, output) as outputs come, of all parts together. Closing it ends them all."""
    queue: asyncio.Queue[tuple[int, RequestOutput | Exception | None]] = asyncio.Queue(MOST_UNREAD)
    room = asyncio.Event()
    room.set()

    async def put(item: tuple[int, RequestOutput | Exception | None]) -> None:
        if queue.full():
            room.clear()
        await queue.put(item)

    async def pump(part: ChoiceRange, on_turn: OnTurn) -> None:
        stream = outputs(part, on_turn)
        try:
            async for output in stream:
                await put((part.prompt, output))
            await put((part.prompt, None))
        except Exception as e:
            await put((part.prompt, e))
        finally:
            await stream.aclose()

    async with spread(admission, parts, pump, room):
        left = len(parts)
        while left:
            i, item = await queue.get()
            room.set()
            if item is None:
                left -= 1
            elif isinstance(item, Exception):
                raise item
            else:
                yield i, item


def renumber(output: RequestOutput, first: int) -> None:
    """Number the choices of a later part as in the request. Only the first part reports cached tokens."""
    output.num_cached_tokens, output.num_stored_tokens = None, 0
    for choice in output.outputs:
        choice.index += first
