"""The whole build of a platform without models: one KV group of the right size, and a step that never runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thalweg.engine.planning import resolve
from thalweg.engine.planning.memory import history
from thalweg.engine.worker.moves import block_operations, check_moves
from thalweg.engine.worker.runner import Runner
from thalweg.engine.worker.stages.config import engine_config
from thalweg.engine.worker.stages.open import BuildInputs
from thalweg.engine.worker.worker import Worker
from thalweg.errors import ConfigError
from thalweg.hal.kv import KVLayout
from thalweg.hal.step import StateBox, StepBatch
from thalweg.models import sizes


def build_without_model(inputs: BuildInputs, least: Callable[[int], int]) -> Worker:
    """See `sizes.stand_in_group`. Raises ConfigError for a model that gives vectors."""
    if inputs.spec.pooling is not None:
        raise ConfigError(f"device: platform {inputs.platform.name!r} runs no model, so it has no vectors to give")
    facts, args, device = inputs.facts, inputs.args, inputs.device
    length = resolve.max_len(args, facts)
    schedule = resolve.scheduler(args, inputs.defaults, length)
    bt = resolve.block_tokens(args, inputs.defaults)
    group = sizes.stand_in_group(inputs.spec, bt)
    memory = least(resolve.cache_bytes(args, inputs.defaults, device.memory(), 0, history(schedule, length)))
    size = resolve.cache_size(args, (group,), memory, length, schedule.max_seqs)
    config = engine_config(inputs, dtype="none", size=size, groups=(group,), schedule=schedule, vocab=facts.vocab)
    check_moves(inputs)
    layout = KVLayout((bt,), "int64", "rolling-hash")
    box = StateBox(
        {
            "kv": [device.alloc_kv(layout, size.blocks[0])],
            "history": device.alloc((schedule.max_seqs + 1, size.max_len + 1), "int32"),
        }
    )
    runner = Runner(lambda shape, features: device.compile(_no_step, {"vocab": facts.vocab}, box, shape, features), (), ())
    operations = {"populate": lambda reached: False, **block_operations(inputs, box, (0,), (group,), (layout,), ())}
    return Worker(config, runner.launch, ["no model: this platform computes none"], device, operations)


def _no_step(params: Any, state: Any, batch: StepBatch) -> Any:
    raise RuntimeError("a platform with runs_models = False was asked to run a model's step")
