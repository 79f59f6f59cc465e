"""The memory plan of an engine: weights, KV cache, workspace, the tokens and sequences that fit, and the flag to change when
they do not. It reads only config.json and the headers of the weights. No device is opened, no weight is read, no tensor
framework is loaded.

This module makes no decisions: sizes come from `resolve` and `models.sizes`, estimates from the platform.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any

from msgspec.structs import replace as replace_args

from thalweg.checkpoint.config import facts as read_facts
from thalweg.checkpoint.weights import open_weights
from thalweg.config import EngineArgs, SchedulerConfig, check_args
from thalweg.engine.control.cache.groups import policy
from thalweg.engine.planning import checkpoint_config, resolve
from thalweg.engine.planning.draft import read_draft
from thalweg.engine.planning.drafter_files import resolve_drafter
from thalweg.engine.planning.talker import talker_bytes
from thalweg.errors import CheckpointError, ConfigError, DeviceError
from thalweg.hal import discovery
from thalweg.hal.device import DeviceInfo, Memory
from thalweg.hal.kv import KVSpec
from thalweg.hal.parts.overlays import ENCODED
from thalweg.hal.platform import Defaults, ModelInfo, Platform, StepSizes
from thalweg.models import adapter_names, registry, sizes
from thalweg.models.drafts.declared import DraftModel
from thalweg.models.fallback.spec import UNRELIABLE, TransformersSpec
from thalweg.models.precision import model_scheme
from thalweg.models.refusals import check_ranks
from thalweg.models.spec import ModelSpec, PositionText
from thalweg.models.weights import IndivisibleError
from thalweg.quantization import registry as formats


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Sizes in bytes, per device where several share the model. `total` is the peak that the engine's process holds there
    beyond the framework itself."""

    model: str
    architecture: str
    platform: str
    device: str
    device_bytes: int
    devices: int
    """Devices that share the model."""
    dtype: str
    implementation: str
    """thalweg, or transformers where that library's module computes the model."""
    stored_bytes: int
    """Bytes of the weights in the files. 0: no files."""
    weights: int
    """In memory: in dtype, with copies that kernels pack, and computed tables."""
    loading: int
    """Peak bytes while loading: weights and temporary copies, before there is a cache."""
    kv_per_token: int
    kv_cache: int
    """Every block of every group, scratch included."""
    blocks: int
    block_tokens: int
    groups: list[dict[str, Any]]
    tokens: int
    """Tokens that fit in the cache at once."""
    sequences: int
    """Sequences of max_model_len tokens that fit at once; never more than max_num_seqs."""
    history: int
    workspace: int
    adapters: int
    """Bytes of the slots for adapters, used or not."""
    talker: int
    """Bytes of the engine that speaks the answers."""
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    problems: list[str] = field(default_factory=list)
    """Reasons why the engine would not start, or should not. Each names the flag to change."""
    advice: list[str] = field(default_factory=list)
    """Where less fits than the flags allow."""

    @property
    def total(self) -> int:
        return self.weights + self.kv_cache + self.history + self.workspace + self.adapters + self.talker

    @property
    def fits(self) -> bool:
        return not self.problems


@dataclass(frozen=True, slots=True)
class _PlanInputs:
    """Inputs of a plan."""

    args: EngineArgs
    hf: dict[str, Any]
    facts: ModelInfo
    spec: ModelSpec
    platform: Platform
    info: DeviceInfo
    """One of the devices that share the model."""
    defaults: Defaults
    ranks: int
    draft: DraftModel | None


def plan(args: EngineArgs) -> Plan:
    """Plan an engine. `args.model` is a local directory. Raises the errors of `build` for a wrong model or flag. Insufficient
    memory is no error but `Plan.problems`. Of several pipeline stages, the plan is that of the one with the least room."""
    platform = discovery.resolve_platform(args.device)
    result = [_plan(_gather_inputs(args, platform, stage)) for stage in range(args.pipeline_parallel_size)]
    return max(result, key=lambda p: (bool(p.problems), -p.tokens, p.total))


RANKS = (1, 2, 4, 8, 16, 32)
"""Numbers of ranks to try for a plan."""


def fewest_ranks(args: EngineArgs) -> int | None:
    """The smallest tensor_parallel_size of `RANKS` with which the model fits. None: no such size is possible and fits."""
    for n in RANKS:
        with contextlib.suppress(ConfigError):
            if plan(replace_args(args, tensor_parallel_size=n)).fits:
                return n
    return None


def to_load(args: EngineArgs, platform: Platform) -> int:
    """Bytes of parameters that a device of `platform` will be given, computed ones excluded. 0: they do not fit with the rest
    of the plan. `args` and errors as for `plan`."""
    known = _gather_inputs(args, platform)
    result = _plan(known)
    return result.weights - sizes.table_bytes(known.spec, resolve.max_len(args, known.facts)) if result.fits else 0


def _gather_inputs(args: EngineArgs, platform: Platform, stage: int = 0) -> _PlanInputs:
    args = resolve_drafter(args)
    check_args(args)
    path = Path(args.model)
    hf = checkpoint_config.read(args, path)
    hf, spec = registry.declare(hf, path)
    spec = resolve.divide(args, spec, stage)
    facts = resolve.within(read_facts(hf, path), spec)
    resolve.check_values(args, platform)
    args = resolve.for_tail(args, spec)
    args = checkpoint_config.resolve_kv_cache_dtype(args, hf, spec) if platform.runs_models else args
    platform = resolve.configure_platform(args, platform)
    info = platform.describe()
    if info is None:
        raise DeviceError(f"device: {platform.name!r} cannot be planned for: {platform.unplannable_reason()}")
    places = resolve.places(args, platform)
    ranks = sum(len(p.devices) for p in places) // args.pipeline_parallel_size
    if ranks > 1:
        check_ranks(spec, {"tensor": ranks})
    info, defaults = resolve.share_of_device(platform, max(1, len(places) // args.nnodes), info, platform.defaults(facts, info))
    return _PlanInputs(args, hf, facts, spec, platform, info, defaults, ranks, read_draft(args, hf, spec, path))


def _plan(k: _PlanInputs) -> Plan:
    try:
        return _plan_sizes(k)
    except IndivisibleError as e:
        raise ConfigError(f"tensor_parallel_size: {k.ranks} does not divide this model: {e}") from None


def _plan_sizes(k: _PlanInputs) -> Plan:
    args = k.args
    dtype = resolve.dtype(args, k.facts, k.info, k.defaults)
    length = resolve.max_len(args, k.facts)
    schedule = resolve.scheduler(args, k.defaults, length)
    groups = _groups(k, length, resolve.block_tokens(args, k.defaults), dtype, schedule.most_drafts > 0)
    if k.facts.weight_bytes and args.load_format != "dummy" and formats.of_checkpoint(k.hf) is None:
        _check_stored(k)
    weights = beside = 0
    if k.platform.runs_models:
        use = model_scheme(k.hf, args.quantization, k.spec)
        weights = sizes.weight_bytes(
            k.spec, dtype, length, k.ranks, use, k.platform.packs, k.platform.dense_share, k.platform.quantised_bytes
        )
        weights += 0 if k.draft is None else k.draft.weight_bytes(dtype, length, k.platform)
        beside = sizes.loading_bytes(k.spec, dtype, k.ranks, use)
        beside *= 2 if isinstance(k.spec, TransformersSpec) else 1  # tensors of experts are joined as a copy
    problems: list[str] = []
    steps = step_sizes(k.spec, schedule, length, dtype, k.ranks, args.batch_invariant is not False)
    others = (
        _workspace(k, steps)
        + history(schedule, length, k.spec)
        + encoder_cache_bytes(k.spec)
        + adapter_slots(args, k.spec, dtype, k.ranks)
        + talker_bytes(args)
    )  # of the length asked for; shorter than that needs no more
    try:
        memory = resolve.cache_bytes(args, k.defaults, Memory(k.info.memory_bytes, k.info.memory_bytes), weights, others)
        schedule = resolve.with_states(args, groups, memory, schedule)
        size = resolve.cache_size(args, groups, memory, length, schedule.max_seqs)
    except ConfigError as e:
        problems += e.problems
        size = resolve.CacheSize((0,) * len(groups), length, 0)
    kv_cache = sum(n * g.bytes_per_block for n, g in zip(size.blocks, groups, strict=True))
    least = min(range(len(groups)), key=lambda i: groups[i].block_tokens)
    result = Plan(
        model=args.model, architecture=k.facts.architecture, platform=k.platform.name, device=k.info.name,
        device_bytes=k.info.memory_bytes, devices=k.ranks * args.pipeline_parallel_size, dtype=dtype,
        implementation="transformers" if isinstance(k.spec, TransformersSpec) else "thalweg",
        stored_bytes=k.facts.weight_bytes, weights=weights, loading=weights + beside,
        kv_per_token=sum(map(_per_token, groups)), kv_cache=kv_cache,
        blocks=size.blocks[least], block_tokens=groups[least].block_tokens,
        groups=[_describe_group(g, n) for g, n in zip(groups, size.blocks, strict=True)],
        tokens=size.tokens, sequences=_sequences(groups, size, schedule), history=history(schedule, size.max_len, k.spec),
        workspace=_workspace(k, replace(steps, max_len=size.max_len)) + encoder_cache_bytes(k.spec),
        adapters=adapter_slots(args, k.spec, dtype, k.ranks), talker=talker_bytes(args), max_model_len=size.max_len,
        max_num_seqs=schedule.max_seqs, max_num_batched_tokens=schedule.token_budget, problems=problems,
    )  # fmt: skip
    _advise(result, k, length, groups)
    return result


def _workspace(k: _PlanInputs, steps: StepSizes) -> int:
    return k.platform.workspace(steps) if k.platform.runs_models else 0


def history(schedule: SchedulerConfig, length: int, spec: ModelSpec | None = None) -> int:
    """Bytes of the token history, with codes and texts of frames. 0: a pooling model."""
    if spec is not None and spec.pooling is not None:
        return 0
    codes = 0 if spec is None or spec.depth is None else spec.depth.books - 1 + isinstance(spec.spoken_text, PositionText)
    return (schedule.max_seqs + 1) * (length + 1) * 4 * (1 + codes)


def adapter_slots(args: EngineArgs, spec: ModelSpec, dtype: str, ranks: int) -> int:
    """Bytes of the slots for adapters on one of so many ranks. All are allocated at start. ConfigError for options that do not
    fit the model."""
    if not args.enable_lora:
        return 0
    if args.lora_dtype not in (None, "auto", dtype):
        raise ConfigError(
            f"lora_dtype: {args.lora_dtype}, but adapters are held in the model's type, {dtype}; leave it at auto"
        )
    if unmatched := adapter_names.find_unmatched(adapter_names.adapter_tensors(spec), args.lora_target_modules):
        raise ConfigError(
            f"lora_target_modules: {', '.join(unmatched)}: the model has no matrix of this name that adapters may change; name "
            f"modules as its checkpoint does, like {', '.join(_module_names(spec))}"
        )
    return adapter_names.adapter_bytes(
        spec, dtype, args.max_loras, args.max_lora_rank, args.lora_target_modules, ranks, args.tp_invariant
    )


def _module_names(spec: ModelSpec) -> list[str]:
    """The last parts of the names of modules that adapters may change."""
    return sorted(
        {name.removesuffix(".T").removesuffix(".weight").rpartition(".")[2] for name in adapter_names.adapter_tensors(spec)}
    )


def encoder_cache_bytes(spec: ModelSpec) -> int:
    """Bytes of the cache of encoded images and audio, kept for later requests with the same media."""
    return ENCODED if spec.vision is not None or spec.audio is not None else 0


def step_sizes(
    spec: ModelSpec, schedule: SchedulerConfig, length: int, dtype: str, ranks: int, batch_invariant: bool
) -> StepSizes:
    """The sizes of a model's largest step, which bound its temporaries, on one of the ranks that share it. Every draft
    samples too."""
    rows = 1 + schedule.most_drafts
    return sizes.step_sizes(
        spec, tokens=schedule.token_budget, seqs=min(schedule.max_seqs * rows, schedule.token_budget), max_len=length,
        dtype=dtype, ranks=ranks, batch_invariant=batch_invariant,
    )  # fmt: skip


def _grown(g: KVSpec) -> int:
    """Blocks by which a cache grows with 1024 blocks of tokens: none where a sequence has one, however long it is."""
    kind = policy(g)
    return kind.num_blocks(g, 1024 * g.block_tokens, 1) - kind.num_blocks(g, 0, 1)


def _per_token(g: KVSpec) -> int:
    """Bytes by which a cache grows for each token more, in the long run."""
    return -(-_grown(g) * g.bytes_per_block // (1024 * g.block_tokens))


def _describe_group(g: KVSpec, blocks: int) -> dict[str, Any]:
    return {
        "kind": g.kind, "window": g.window, "layers": len(g.layers), "bytes_per_block": g.bytes_per_block,
        "block_tokens": g.block_tokens if _grown(g) else 0, "blocks": blocks,
    }  # fmt: skip


def _groups(k: _PlanInputs, length: int, block_tokens: int, dtype: str, drafts: bool) -> tuple[KVSpec, ...]:
    if not k.platform.runs_models:
        return (sizes.stand_in_group(k.spec, block_tokens),)
    states = resolve.state_tokens(k.args, k.spec, block_tokens)
    kept = sizes.cache_specs(k.spec, dtype, k.args.kv_dtype, length, k.ranks, k.args.kv_cache_dtype_skip_layers)
    each = sizes.block_bytes(kept, block_tokens, k.spec)
    groups = sizes.kv_groups(kept, block_tokens, states, each, spare_states=drafts)
    return groups if k.draft is None else k.draft.add_caches(groups, dtype, length, block_tokens)


def _check_stored(k: _PlanInputs) -> None:
    """The files hold about as many values as the configuration makes. Not exactly: a tied output matrix may be stored too,
    and some checkpoints keep tables. Counted in values, as files may be in another dtype than config.json names."""
    stored = open_weights(Path(k.args.model))
    held = sum(prod(stored.entry(name)[1]) for name in stored.names if k.spec.rename(name) is not None)
    described = sizes.stored_values(replace(k.spec, span=None) if k.spec.span else k.spec)
    extra = sizes.unread_values(k.spec) + (sizes.head_values(k.spec) if k.spec.tied else 0)
    if not 0.98 * described <= held <= 1.02 * (described + extra):
        raise CheckpointError(
            f"{k.args.model}: config.json describes {described:,} weights, and the files hold {held:,}: "
            "one of the two belongs to another model"
        )


def _sequences(groups: tuple[KVSpec, ...], size: resolve.CacheSize, schedule: SchedulerConfig) -> int:
    """Sequences of full length that fit, by the group that holds fewest."""
    fewest = schedule.max_seqs
    for g, blocks in zip(groups, size.blocks, strict=True):
        fewest = min(fewest, max(0, blocks - 1) // policy(g).holds(g, size.max_len, schedule.token_budget))
    return fewest


def _advise(p: Plan, k: _PlanInputs, length: int, groups: tuple[KVSpec, ...]) -> None:
    if isinstance(k.spec, TransformersSpec):
        p.advice.append(UNRELIABLE)

    def cost(tokens: int) -> int:
        return resolve.cache_cost(groups, tokens, p.max_num_seqs)

    if not p.problems and p.total > p.device_bytes:
        over = p.total - p.device_bytes
        least = p.weights + p.history + p.workspace + cost(2 * p.block_tokens)
        if least > p.device_bytes:
            narrower = "--dtype bfloat16, " if p.dtype == "float32" and "bfloat16" in k.info.dtypes else ""
            p.problems.append(
                f"weights and workspace alone need {gib(least)} and {p.device} has {gib(p.device_bytes)}: choose "
                f"{narrower}a smaller --max-num-batched-tokens ({p.max_num_batched_tokens}), or a smaller model"
            )
        else:
            room = p.kv_cache - over
            p.problems.append(
                f"needs {gib(p.total)} and {p.device} has {gib(p.device_bytes)}: lower --kv-cache-memory-bytes to {room}"
            )
    if p.max_model_len < length:
        p.advice.append(
            f"the model allows {length} tokens, the cache holds one sequence of {p.max_model_len}: raise "
            f"--kv-cache-memory-bytes to {cost(length)} for all of them"
        )
    elif p.fits and p.sequences < p.max_num_seqs:
        p.advice.append(
            f"{p.sequences} of {p.max_num_seqs} sequences fit at {p.max_model_len} tokens each, others wait or are preempted: "
            f"lower --max-model-len (to {p.tokens // p.max_num_seqs // p.block_tokens * p.block_tokens} for {p.max_num_seqs}), "
            "or raise --kv-cache-memory-bytes"
        )


def gib(n: int) -> str:
    """Bytes for people."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if abs(n) >= size:
            return f"{n / size:.2f} {unit}"
    return f"{n} bytes"
