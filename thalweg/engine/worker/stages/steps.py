"""Fourth stage: the runner, and the steps that run before the first request."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from thalweg.config import EngineArgs
from thalweg.engine.planning.memory import gib, plan
from thalweg.engine.worker import rehearsal
from thalweg.engine.worker.rehearsal import decodes, prompts
from thalweg.engine.worker.runner import Compile, Runner
from thalweg.engine.worker.stages.cache import CachePlan
from thalweg.engine.worker.stages.model import BuiltModel
from thalweg.engine.worker.stages.open import BuildInputs
from thalweg.hal.platform import Limits
from thalweg.hal.step import StepBatch, StepShape
from thalweg.host.marks import mark

logger = logging.getLogger(__name__)


def make_runner(
    inputs: BuildInputs, built: BuiltModel, cache: CachePlan, compile: Compile
) -> tuple[Runner, Limits, Sequence[StepShape]]:
    """The runner, the largest step, and the shapes that batches are padded to."""
    device, model, schedule, size = inputs.device, built.model, cache.schedule, cache.size
    limits = rehearsal.limits(model.groups, schedule.token_budget, schedule.max_seqs, size.max_len, schedule.most_drafts)
    buckets = inputs.platform.buckets(inputs.defaults, limits)
    runner = Runner(
        compile,
        model.attention,
        buckets,
        inputs.defaults.unpadded,
        device.widen,
        rehearsal.tables(model.groups, cache.slots, size.max_len, device.keeps_tables),
    )
    return runner, limits, buckets


def rehearse_steps(inputs: BuildInputs, runner: Runner, limits: Limits, buckets: Sequence[StepShape], vocab: int) -> None:
    """Prepare everything that the first requests would wait for. The client learns only afterwards that the engine is ready,
    and from then on counts the seconds without a finished step."""
    device, most = inputs.device, inputs.args.max_logprobs
    before: list[Callable[[], StepBatch]] = []
    after: list[Callable[[], StepBatch]] = []
    if device.warms:
        most = EngineArgs.max_logprobs if most < 0 else most  # no limit: the default number
        before, after = (
            make(limits, runner.tables, vocab, min(most, vocab), inputs.args.enable_lora) for make in (prompts, decodes)
        )
    steps = runner.rehearsals(device.warmup_buckets(buckets), before, after)
    if not steps:
        return
    start, free = time.monotonic(), device.memory().free if device.warms else 0
    device.rehearse(steps)
    if device.warms:
        device.synchronize()
        _log_rehearsal(inputs, len(steps), time.monotonic() - start, free - device.memory().free)
    mark("steps prepared")


def _log_rehearsal(inputs: BuildInputs, steps: int, seconds: float, taken: int) -> None:
    """taken: bytes of device memory used meanwhile, apart from weights and cache. The workspace was planned for them."""
    logger.info("prepared: %d steps in %.1f s, which took %s of device memory", steps, seconds, gib(max(0, taken)))
    if inputs.platform.describe() is None:
        return
    planned = plan(inputs.args).workspace
    if taken > planned:
        logger.warning(
            "preparing took %s of device memory and %s were planned: if memory runs out later, lower "
            "--gpu-memory-utilization (%g) or --max-num-seqs",
            gib(taken), gib(planned), inputs.args.gpu_memory_utilization,
        )  # fmt: skip
