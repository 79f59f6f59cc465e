"""Many lines at once, answered in order, with a bound on what is in memory."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterable

from starlette.types import ASGIApp

from thalweg.server.batch.lines import Answer, answer, parse


async def answers(app: ASGIApp, lines: Iterable[bytes], at_once: int) -> AsyncGenerator[Answer, None]:
    """An answer for each line, in the order of the lines. At most `at_once` lines are read ahead of the one whose answer is
    awaited, run together, and held. Two lines of one custom_id are both answered. Closing it ends what runs."""
    running: deque[asyncio.Task[Answer]] = deque()
    try:
        for data in lines:
            if len(running) == at_once:
                yield await running.popleft()
            running.append(asyncio.create_task(answer(app, parse(data))))
        while running:
            yield await running.popleft()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
