"""AsyncLLM.encode over a real engine process: its answers, and every way in which one does not come."""

from __future__ import annotations

import asyncio
import os
import signal

import numpy as np
import pytest

from thalweg import AsyncLLM, EngineArgs, PoolingParams, SamplingParams
from thalweg.errors import EngineDeadError, RequestError
from thalweg.outputs import ABORTED

ARGS = EngineArgs(
    device="cpu", runner="pooling", max_model_len=64, max_num_seqs=4, threads=1, use_tqdm_on_load=False, standby_engine=False,
    max_restarts=0,
)  # fmt: skip
pytestmark = [pytest.mark.asyncio, pytest.mark.slow]


async def take(engine: AsyncLLM, request_id: str, prompt: str = "a river"):
    (out,) = [out async for out in engine.encode(prompt, PoolingParams(), request_id)]
    return out


async def test_answers_aborts_readers_that_leave_and_a_dead_engine() -> None:
    engine = await AsyncLLM.start(ARGS)
    try:
        one, other = await asyncio.gather(take(engine, "a"), take(engine, "b"))
        assert one.error is None
        np.testing.assert_array_equal(one.outputs.data, other.outputs.data)
        with pytest.raises(RequestError, match=r"it does not generate text: use LLM\.embed, or /v1/embeddings"):
            await anext(engine.generate("a", SamplingParams(), "g"))
        with pytest.raises(RequestError, match="pooling_params must be a PoolingParams"):
            await anext(engine.encode("a", SamplingParams(), "p"))  # type: ignore[arg-type]
        os.kill(engine.engine_pid, signal.SIGSTOP)  # what is sent from here on stays open
        tasks = {name: asyncio.create_task(take(engine, name)) for name in ("aborted", "left", "cut")}
        async with asyncio.timeout(30):
            while len(engine._open_ids()) < len(tasks):
                await asyncio.sleep(0.01)
        with pytest.raises(RequestError, match="already running"):
            await take(engine, "cut")
        await engine.abort("aborted")
        assert (await tasks["aborted"]).error == ABORTED
        tasks["left"].cancel()
        await asyncio.wait([tasks["left"]])
        assert engine._open_ids() == engine._client.open_ids() == ["cut"], "nothing is left of the others"
        os.kill(engine.engine_pid, signal.SIGKILL)
        with pytest.raises(EngineDeadError):
            await tasks["cut"]
        with pytest.raises(EngineDeadError):
            await take(engine, "late")
    finally:
        await engine.shutdown()
