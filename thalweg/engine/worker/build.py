"""From the user's arguments to a worker: open the device, build the model, size the cache, load, compile the steps."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

from thalweg.config import EngineArgs
from thalweg.engine.worker.moves import block_operations, check_moves
from thalweg.engine.worker.profiling import profile_operations
from thalweg.engine.worker.stages.cache import allocate_state, plan_cache, populate_caches
from thalweg.engine.worker.stages.config import engine_config
from thalweg.engine.worker.stages.model import build_model, load_weights, make_encoder
from thalweg.engine.worker.stages.open import BuildInputs, open_device
from thalweg.engine.worker.stages.stand_in import build_without_model
from thalweg.engine.worker.stages.steps import make_runner, rehearse_steps
from thalweg.engine.worker.worker import Worker
from thalweg.errors import ConfigError
from thalweg.hal.device import Device
from thalweg.hal.platform import Place, Platform
from thalweg.host.marks import mark
from thalweg.options.observation import read_profiler_config


class BuildGroup:
    """Decisions that the ranks of one engine share while each builds its worker. This class is the group of a single rank."""

    def join(self) -> None:
        """Called before the device is opened, which waits for the other ranks."""

    def on_open(self, device: Device) -> None:
        """The device is open."""

    def least(self, room: int) -> int:
        """The least over ranks of what each has room for in its KV cache: bytes, or of pipeline stages sequences, then
        tokens."""
        return room


def build(
    args: EngineArgs, platform: Platform | None = None, place: Place | None = None, group: BuildGroup | None = None
) -> Worker:
    """A worker for the model in the local directory `args.model`.

    platform: replaces the one that `args.device` names. place: of one rank among several, which `group` connects. None: the
    only one. Raises ConfigError, CheckpointError, UnsupportedModelError or DeviceError, cheap checks first: every error that
    does not need the weights is raised before they are loaded."""
    start = time.monotonic()
    group = group or BuildGroup()
    inputs = open_device(args, platform, place, group.join)
    group.on_open(inputs.device)
    try:
        least = group.least
        worker = _build_with_model(inputs, least) if inputs.platform.runs_models else build_without_model(inputs, least)
        problems = inputs.platform.validate(worker.config)
        if problems:
            raise ConfigError(*(f"{p.field}: {p.message}" for p in problems))
    except BaseException:
        inputs.device.close()
        raise
    worker.operations = {**worker.operations, **profile_operations(read_profiler_config(inputs.args))}
    mark("engine built")
    worker.load_seconds = time.monotonic() - start
    return worker


def _build_with_model(inputs: BuildInputs, least: Callable[[int], int]) -> Worker:
    from thalweg.engine.worker.adapters import AdapterStore
    from thalweg.engine.worker.staged import StagedRunner
    from thalweg.models.step import make_step

    built = build_model(inputs)
    # All user errors about sizes or kernels are raised before a weight is read.
    plan = plan_cache(inputs, built, least)
    check_moves(inputs)
    step = make_step(built.model, built.binder, logprobs_mode=inputs.args.logprobs_mode, proposer=built.proposer)
    params = load_weights(inputs, built)
    state = allocate_state(inputs, built, plan)
    device = inputs.device
    runner, limits, buckets = make_runner(
        inputs, built, plan, lambda shape, features: device.compile(step, params, state, shape, features)
    )
    rehearse = functools.partial(rehearse_steps, inputs, runner, limits, buckets, built.model.vocab)
    rehearse()
    config = engine_config(
        inputs, dtype=built.dtype, size=plan.size, groups=built.groups, schedule=plan.schedule, vocab=built.model.vocab,
        quantization=built.quantization,
    )  # fmt: skip
    launch = runner.launch if device.stages.size == 1 else StagedRunner(runner.launch, device.stages, state)
    kernels, model = [str(c) for c in built.binder.bindings], built.model
    more: dict[str, Any] = {}
    facts = (built.dtype, str(built.quantization), *kernels)
    if model.adapters is not None:  # a sum over padded ranks has other bits
        facts += (f"adapters of rank {model.adapters.rank}",)
        more |= AdapterStore(model, device, state, inputs.path, inputs.args.load_format, inputs.place.tensor_rank).operations
    return Worker(
        config, launch, kernels, device,
        operations={
            "populate": lambda reached: populate_caches(device, model, state, reached),
            **more,
            **block_operations(inputs, state, model.layer_group, model.groups, model.layouts, facts),
        },
        encoder=make_encoder(inputs, built, params), rehearse=rehearse,
    )  # fmt: skip
