"""Third stage: the number of blocks of the KV cache, and the state that steps thread through."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec.structs import replace

from thalweg.config import SchedulerConfig
from thalweg.engine.planning import resolve
from thalweg.engine.planning.memory import adapter_slots, encoder_cache_bytes, history, step_sizes
from thalweg.engine.planning.talker import talker_bytes
from thalweg.engine.worker.stages.model import BuiltModel
from thalweg.engine.worker.stages.open import BuildInputs
from thalweg.hal.device import Device
from thalweg.hal.step import StateBox
from thalweg.models import sizes
from thalweg.models.precision import model_scheme

if TYPE_CHECKING:
    from thalweg.models.build import Model

POPULATED = 4096
"""Tokens beyond those the cache has held so far, for which an idle engine prepares memory."""


@dataclass(frozen=True, slots=True)
class CachePlan:
    """Sizes of the state, settled before a weight is read."""

    size: resolve.CacheSize
    schedule: SchedulerConfig

    @property
    def slots(self) -> int:
        """Scratch included."""
        return self.schedule.max_seqs + 1


def plan_cache(inputs: BuildInputs, built: BuiltModel, least: Callable[[int], int]) -> CachePlan:
    """The cache that fits. least: of the bytes that each rank has, the fewest. Raises ConfigError, naming the flag to
    change."""
    args, groups = inputs.args, built.groups
    if inputs.place.stages > 1:
        return _plan_stage(inputs, built, least)
    room = least(_cache_bytes(inputs, built))
    schedule = resolve.with_states(args, groups, room, built.schedule)
    return CachePlan(resolve.cache_size(args, groups, room, built.max_len, schedule.max_seqs), schedule)


def _plan_stage(inputs: BuildInputs, built: BuiltModel, least: Callable[[int], int]) -> CachePlan:
    """A token costs each stage something else, so the stages agree on numbers of sequences and of tokens."""
    args, groups = inputs.args, built.groups
    room = _cache_bytes(inputs, built)
    schedule = resolve.with_states(args, groups, room, built.schedule)
    seqs = least(schedule.max_seqs)
    tokens = least(resolve.cache_size(args, groups, room, built.max_len, seqs).tokens)
    size = resolve.cache_of(groups, tokens, built.max_len, seqs)
    return CachePlan(size, replace(schedule, max_seqs=seqs))


def allocate_state(inputs: BuildInputs, built: BuiltModel, plan: CachePlan) -> StateBox:
    from thalweg.models.step import make_state

    return StateBox(
        make_state(
            built.model, inputs.device, blocks=plan.size.blocks, slots=plan.slots, max_len=plan.size.max_len,
            proposer=built.proposer, tokens=plan.schedule.token_budget if inputs.place.stages > 1 else 0,
        )
    )  # fmt: skip


def populate_caches(device: Device, model: Model, state: StateBox, reached: Sequence[int]) -> bool:
    """`Device.populate` of all caches: memory for the next blocks of each group. reached: first blocks per group that have
    been in use. Returns whether there is more to do."""
    ahead = [range(n, n + max(16, POPULATED // g.block_tokens)) for n, g in zip(reached, model.groups, strict=True)]
    caches = zip(state.value["kv"], model.layer_group, strict=True)
    return device.populate([(part, ahead[g]) for kv, g in caches for part in (kv if isinstance(kv, tuple) else (kv,))])


def _cache_bytes(inputs: BuildInputs, built: BuiltModel) -> int:
    """Bytes for the KV cache."""
    spec, args, ranks = inputs.spec, inputs.args, inputs.device.comm.size
    steps = step_sizes(spec, built.schedule, built.max_len, built.dtype, ranks, args.batch_invariant is not False)
    others = inputs.platform.workspace(steps) + history(built.schedule, built.max_len, spec) + encoder_cache_bytes(spec)
    others += adapter_slots(args, spec, built.dtype, ranks) + talker_bytes(args)
    use = model_scheme(inputs.hf, args.quantization, spec)
    platform = inputs.platform
    weights = sizes.weight_bytes(
        spec, built.dtype, built.max_len, ranks, use, platform.packs, platform.dense_share, platform.quantised_bytes
    )
    if inputs.draft is not None:
        weights += inputs.draft.weight_bytes(built.dtype, built.max_len, platform)
    return resolve.cache_bytes(args, inputs.defaults, inputs.device.memory(), weights, others)
