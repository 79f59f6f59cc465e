"""Streams of an engine over several ranks, and the processes of those ranks."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from thalweg import AsyncLLM, SamplingParams
from thalweg.params import RequestOutputKind

OWNER = "RANKS_BELONG_TO"
"""A variable of the environment, which processes inherit from the tests' process: other tests run at the same time."""
os.environ[OWNER] = str(os.getpid())
PROMPTS = ["Once upon a time", "2 + 2 =", "one two three " * 30]


async def collect_texts(
    engine: AsyncLLM, begun: asyncio.Event | None = None, tokens: int = 96, first: asyncio.Event | None = None
) -> list[list[int]]:
    """The tokens of each prompt, greedy and seeded. begun: set once every stream has a few tokens. first: set with the first
    token of any."""
    waiting = set(range(len(PROMPTS)))

    async def collect(i: int) -> list[int]:
        params = SamplingParams(
            temperature=0.8 if i else 0, seed=i, max_tokens=tokens, ignore_eos=True, output_kind=RequestOutputKind.DELTA
        )
        got: list[int] = []
        async for out in engine.generate(PROMPTS[i], params, f"{i} {os.urandom(4).hex()}"):
            got += out.outputs[0].token_ids
            if first is not None:
                first.set()
            waiting.discard(i if len(got) > 4 else -1)
            if begun is not None and not waiting:
                begun.set()
        return got

    return list(await asyncio.gather(*(collect(i) for i in range(len(PROMPTS)))))


def list_ranks() -> list[int]:
    """The live process of every rank that this process has started, or that others have for it."""
    found, ours = [], f"{OWNER}={os.getpid()}".encode()
    for each in Path("/proc").glob("[0-9]*"):
        try:
            named = b"thalweg.engine.executor.rank" in (each / "cmdline").read_bytes()
            if not named or ours not in (each / "environ").read_bytes().split(b"\0"):
                continue
            if (each / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
                found.append(int(each.name))
        except OSError:
            continue
    return found


async def wait_for_end(before: set[int]) -> None:
    """Until there are no ranks but these. AssertionError if some stay."""
    for _ in range(1200):
        if set(list_ranks()) <= before:
            return
        await asyncio.sleep(0.05)
    assert set(list_ranks()) <= before
