"""Prompts of one request to a model whose results are arrays: how they run."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from thalweg.outputs import ABORTED, PoolingOutput, PoolingRequestOutput
from thalweg.params import PoolingParams
from thalweg.server.core.adapters import explain_lost, find_lost
from thalweg.server.core.job import AcceptedJob
from thalweg.server.core.serving import Serving, closing
from thalweg.server.errors import ApiError

Output = PoolingRequestOutput[PoolingOutput]


class PoolingJob(AcceptedJob, frozen=True, kw_only=True):
    """Prompts to pool."""

    params: PoolingParams


async def run(serving: Serving, work: PoolingJob) -> list[Output]:
    """Every prompt's output, in order. The first failure cancels the rest."""
    if len(work.prompts) == 1:
        return [await run_prompt(serving, work, 0)]
    tasks = [asyncio.create_task(run_prompt(serving, work, i)) for i in range(len(work.prompts))]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def run_prompt(serving: Serving, work: PoolingJob, i: int) -> Output:
    """The output of prompt i. ApiError."""
    prompt = work.prompts[i]
    turn = serving.admission.turn(work.ticket, 1, len(prompt["prompt_token_ids"]), work.priority)
    async with AsyncExitStack() as held:
        with serving.adapters.queue(work.adapter):
            await held.enter_async_context(turn)
        request_id = held.enter_context(serving.under_way(work.id))
        stream = serving.engine.encode(prompt, work.params, request_id, priority=work.priority, lora_request=work.lora_request)
        try:
            with explain_lost():
                output = await anext(stream)
        finally:
            await stream.aclose()
    if output.error == ABORTED and serving.lifecycle.cutting:
        raise closing()
    if output.error is not None:
        raise find_lost(output.error) or ApiError(output.error, status=500)
    return output
