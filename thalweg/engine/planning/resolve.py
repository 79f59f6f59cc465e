"""Merging configuration: user > platform > global default, once. All objections are collected and raised together."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, get_type_hints

import msgspec

from thalweg.config import EngineArgs, SchedulerConfig
from thalweg.engine.control.cache.groups import policy
from thalweg.errors import ConfigError
from thalweg.hal.device import DeviceInfo, Memory
from thalweg.hal.kv import KVSpec, StateSpec
from thalweg.hal.platform import Defaults, ModelInfo, Parallel, Place, Platform
from thalweg.models import sizes
from thalweg.models.expert_parallel import has_experts, place_experts
from thalweg.models.fallback.spec import TransformersSpec
from thalweg.models.refusals import check_ranks
from thalweg.models.spec import ModelSpec
from thalweg.models.stages import cut_stage
from thalweg.options.speculation import read_speculation_config

BLOCK_TOKENS = 16
STATE_TOKENS = 1024
MAX_SEQS = 128
MAX_BATCHED_TOKENS = 2048
"""Global defaults, where neither user nor platform says otherwise."""


@dataclass(frozen=True, slots=True)
class PerformanceMode:
    """Effect of performance_mode where the user sets nothing: factors of sequences and of tokens in a step, and the most that
    prompts slow running streams (0 = no limit)."""

    seqs: float = 1.0
    tokens: float = 1.0
    slowdown: float = 2.0


MODES = {
    "balanced": PerformanceMode(),
    "interactivity": PerformanceMode(tokens=0.5, slowdown=1.25),
    "throughput": PerformanceMode(2.0, 2.0, 0.0),
}
_ALIASES = {"half": "float16", "float": "float32"}


def within(facts: ModelInfo, spec: ModelSpec) -> ModelInfo:
    """The facts, with a context no longer than the model has learned positions for."""
    return facts if spec.positions is None else replace(facts, max_len=min(facts.max_len, spec.positions), longest=0)


def in_chunks(spec: ModelSpec) -> bool:
    """May a text be computed in chunks, or parts be found in the prefix cache? Not with bidirectional attention, nor where
    the result is pooled from states that are not kept."""
    return spec.pooling is None or (spec.causal and spec.pooling.mode == "last")


def for_tail(args: EngineArgs, spec: ModelSpec) -> EngineArgs:
    """The arguments adjusted to the model's tail: most pooling models compute a text whole, in one step. ConfigError where a
    flag needs a feature that such a model does not have."""
    if isinstance(spec, TransformersSpec):
        args = _for_foreign(args)
    if spec.pooling is None:
        return args
    if args.kv_cache_dtype != "auto" and not spec.causal:
        raise ConfigError("kv_cache_dtype: this model keeps no keys and values; omit it")
    if args.speculative_config or args.spec_method or args.spec_model or args.spec_tokens:
        raise ConfigError("speculative_config: this model generates no tokens to guess; omit it")
    whole = {} if in_chunks(spec) else {"enable_chunked_prefill": False, "enable_prefix_caching": False}
    return msgspec.structs.replace(args, **whole)


def divide(args: EngineArgs, spec: ModelSpec, stage: int = 0) -> ModelSpec:
    """The model as the ranks of a pipeline stage divide it. ConfigError where a flag needs a part that it lacks."""
    if args.enable_expert_parallel or (args.tp_invariant and has_experts(spec)):
        placed = place_experts(spec)
        spec = placed if args.tensor_parallel_size > 1 else spec
    if args.pipeline_parallel_size == 1:
        return spec
    check_ranks(spec, {"stage": args.pipeline_parallel_size})
    _check_stages(args)
    return cut_stage(spec, stage, args.pipeline_parallel_size, args.pipeline_layer_partition)


def _check_stages(args: EngineArgs) -> None:
    """ConfigError lists the flags that pipeline stages exclude."""
    config = args.structured_outputs_config or {}
    explicit = {
        "speculative_config": (bool(args.speculative_config or args.spec_method or args.spec_tokens), "drafts are not"),
        "structured_outputs_config: enable_jump_forward": (bool(config.get("enable_jump_forward")), "drafts are not"),
        "enable_lora": (args.enable_lora, "adapters are not"),
        "kv_transfer_config": (bool(args.kv_transfer_config or args.kv_offloading_size), "blocks in stores are not"),
    }
    if problems := [
        f"{name}: {why} divided among pipeline stages; omit it" for name, (there, why) in explicit.items() if there
    ]:
        raise ConfigError(*problems)


def _for_foreign(args: EngineArgs) -> EngineArgs:
    """The arguments for a model that transformers' own module computes. ConfigError lists flags that this path does not
    support."""
    explicit = {
        "batch_invariant": bool(args.batch_invariant), "tp_invariant": args.tp_invariant,
        "tensor_parallel_size": args.tensor_parallel_size > 1, "pipeline_parallel_size": args.pipeline_parallel_size > 1,
        "strict_kernels": args.strict_kernels,
        "enable_lora": args.enable_lora,
    }  # fmt: skip
    why = "this model is served through transformers' own module, on one device, and not every operation of it is thalweg's"
    if problems := [f"{name}: {why}; omit it" for name, there in explicit.items() if there]:
        raise ConfigError(*problems)
    return msgspec.structs.replace(args, batch_invariant=False)


def places(args: EngineArgs, platform: Platform) -> tuple[Place, ...]:
    """Where the processes of this engine sit, in order of ranks. ConfigError where the platform has no ranks."""
    stages = args.pipeline_parallel_size
    if stages > 1 and not platform.supports_stages:
        raise ConfigError(f"pipeline_parallel_size: platform {platform.name!r} has no stages: leave it at 1")
    if stages == 1 and args.pipeline_layer_partition is not None:
        raise ConfigError("pipeline_layer_partition: pipeline_parallel_size is 1, so one stage has all layers; omit it")
    if stages > 1 and args.nnodes > 1:
        check_stages_on_one_machine(args)
    found = platform.topology(Parallel(tensor=args.tensor_parallel_size, pipeline=stages)).places
    found = tuple(replace(p, stages=stages) for p in found)
    if len(found) > 1 and not platform.supports_ranks:
        raise ConfigError(
            f"tensor_parallel_size: platform {platform.name!r} divides no model among {len(found)} processes: leave it at 1"
        )
    if args.enable_lora and len(found) == 1 and args.tensor_parallel_size > 1:
        raise ConfigError(
            f"enable_lora: platform {platform.name!r} drives {args.tensor_parallel_size} devices in one process, which divide "
            "no adapters yet; leave tensor_parallel_size at 1"
        )
    per_node = len(found)
    if args.nnodes > 1:
        per_node = ranks_per_node(args, platform, len(found))
        found = tuple(replace(p, devices=(p.rank % per_node,)) for p in found)
    if args.device_ids is None or args.tensor_parallel_size * stages == 1:
        return found
    if len(found) == 1 or platform.options is None or "device" not in get_type_hints(type(platform.options)):
        raise ConfigError(f"device_ids: ranks of platform {platform.name!r} use its first devices; omit it")
    return tuple(replace(p, devices=(args.device_ids[p.rank % per_node],)) for p in found)


def check_stages_on_one_machine(args: EngineArgs) -> None:
    """ConfigError if ranks of several machines were to be stages."""
    if args.pipeline_parallel_size > 1:
        raise ConfigError("pipeline_parallel_size: stages run on one machine; use tensor_parallel_size for several")


def ranks_per_node(args: EngineArgs, platform: Platform, ranks: int) -> int:
    """Ranks of each machine. ConfigError where the machines do not divide them, or one process drives all devices."""
    if ranks == 1 and args.tensor_parallel_size > 1:
        raise ConfigError(f"nnodes: on platform {platform.name!r} one process drives every device, of one machine; omit it")
    if ranks % args.nnodes:
        raise ConfigError(
            f"nnodes: {args.nnodes} machines do not divide {ranks} {'ranks' if ranks > 1 else 'rank'} (tensor_parallel_size) "
            "evenly; give each machine as many"
        )
    return ranks // args.nnodes


def only_place(args: EngineArgs, platform: Platform) -> Place:
    """The place of an engine with one process. ConfigError where it needs more."""
    found = places(args, platform)
    if len(found) > 1:
        raise ConfigError(
            f"distributed_executor_backend: tensor_parallel_size {args.tensor_parallel_size}"
            f"{_stages(args)} on platform {platform.name!r} needs {len(found)} processes; use mp, or omit it"
        )
    return found[0]


def _stages(args: EngineArgs) -> str:
    n = args.pipeline_parallel_size
    return "" if n == 1 else f" and pipeline_parallel_size {n}"


def share_of_device(platform: Platform, processes: int, info: DeviceInfo, defaults: Defaults) -> tuple[DeviceInfo, Defaults]:
    """Memory and cache of one of the processes of an engine, which may lie on one device."""
    if processes == 1 or not platform.shares_device:
        return info, defaults
    cache = defaults.kv_cache_bytes
    less = replace(defaults, kv_cache_bytes=None if cache is None else cache // processes)
    return replace(info, memory_bytes=info.memory_bytes // processes), less


def configure_platform(args: EngineArgs, platform: Platform) -> Platform:
    """The platform with the user's knobs, checked against those it supports."""
    explicit = dict(args.additional_config or {})
    if args.threads is not None:
        explicit["threads"] = args.threads
    ranks = args.tensor_parallel_size * args.pipeline_parallel_size
    if args.most_engines > 1 or (ranks > 1 and platform.shares_device):
        explicit = _share_of_threads(args, platform) | explicit
    if args.device_ids is not None and ranks == 1:
        explicit |= _device(args.device_ids, platform)
    elif args.device_ids is not None and len(set(args.device_ids)) * args.nnodes != ranks:
        machines = f" on {args.nnodes} machines" if args.nnodes > 1 else ""
        raise ConfigError(
            f"device_ids: tensor_parallel_size is {args.tensor_parallel_size}{_stages(args)}{machines}: name as many different "
            f"devices{' as each has ranks' if machines else ''}"
        )
    captured = {"graph_sizes": args.cudagraph_capture_sizes, "largest_graph": args.max_cudagraph_capture_size}
    captured = {name: value for name, value in captured.items() if value is not None}
    requested = bool(explicit or captured or args.enforce_eager)
    kinds = get_type_hints(type(platform.options)) if platform.options and requested else {}
    if captured and not captured.keys() <= kinds.keys():
        flag = "cudagraph_capture_sizes" if "graph_sizes" in captured else "max_cudagraph_capture_size"
        raise ConfigError(f"{flag}: platform {platform.name!r} captures no graphs by size; omit it")
    explicit |= captured
    if args.enforce_eager and "graphs" in kinds:
        explicit["graphs"] = False
    if not explicit:
        return platform
    problems, converted = [], {}
    for name, value in explicit.items():
        if name not in kinds:
            there = ", ".join(sorted(kinds)) or "none"
            problems.append(f"{name}: platform {platform.name!r} has no such setting; it has: {there}")
            continue
        try:
            converted[name] = msgspec.convert(value, kinds[name])
        except (msgspec.ValidationError, TypeError) as e:  # TypeError: a knob that only code can set
            problems.append(f"additional_config: {name}: {e}")
    if problems:
        raise ConfigError(*problems)
    return platform.with_options(replace(platform.options, **converted))


def _share_of_threads(args: EngineArgs, platform: Platform) -> dict[str, Any]:
    """The knob of a platform with threads, for one of several processes on its device. ConfigError where only one can open
    it."""
    if args.most_engines > 1 and not platform.shares_device:
        raise ConfigError(
            f"data_parallel_size: {args.most_engines} engines of platform {platform.name!r} would open one device; start "
            "a server per device (--device-ids), behind a load balancer"
        )
    facts = platform.describe()
    if facts is None or platform.options is None or "threads" not in get_type_hints(type(platform.options)):
        return {}
    ranks = args.tensor_parallel_size * args.pipeline_parallel_size
    return {"threads": max(1, facts.cores // (args.most_engines * max(1, ranks // args.nnodes)))}


def _device(ids: Sequence[int], platform: Platform) -> dict[str, Any]:
    """The knob of a platform that says which device it opens. ConfigError where it opens others, or cannot choose."""
    if len(ids) > 1:
        raise ConfigError(f"device_ids: {len(ids)} devices, and an engine of platform {platform.name!r} opens one; name one")
    if platform.options is None or "device" not in get_type_hints(type(platform.options)):
        if ids[0] == 0:
            return {}
        raise ConfigError(f"device_ids: platform {platform.name!r} has one device to choose, 0; omit it")
    return {"device": ids[0]}


def check_values(args: EngineArgs, platform: Platform) -> None:
    """A platform that runs no model keeps no weights, keys or values, so it cannot keep them as asked. ConfigError."""
    if platform.runs_models:
        return
    explicit = {
        "quantization": args.quantization is not None, "kv_cache_dtype": args.kv_cache_dtype != "auto",
        "enable_lora": args.enable_lora,
    }  # fmt: skip
    why = f"platform {platform.name!r} runs no model and keeps no values, so this would change nothing"
    problems = [f"{name}: {why}; omit it, or choose another device" for name, there in explicit.items() if there]
    if problems:
        raise ConfigError(*problems)


def dtype(args: EngineArgs, facts: ModelInfo, device: DeviceInfo, defaults: Defaults) -> str:
    """auto = the checkpoint's own type if the device runs it well, else the platform's choice."""
    if args.dtype != "auto":
        wanted = _ALIASES.get(args.dtype, args.dtype)
        if wanted not in device.dtypes:
            raise ConfigError(f"dtype {wanted} is not one {device.kind} computes in; choose one of {', '.join(device.dtypes)}")
        return wanted
    if facts.dtype in device.dtypes:
        return facts.dtype
    return defaults.dtype or device.dtypes[0]


def max_len(args: EngineArgs, facts: ModelInfo) -> int:
    """The context length of the arguments. At most the model's trained length, or the length that its rope scaling reaches."""
    if args.max_model_len in (None, -1):
        return facts.max_len
    most = max(facts.max_len, facts.longest)
    if args.max_model_len > most:
        stretched = f", which its dynamic rope scaling stretches to {most}" if most > facts.max_len else ""
        raise ConfigError(
            f"max_model_len {args.max_model_len} exceeds the model's own {facts.max_len} positions{stretched}; lower it"
        )
    return args.max_model_len


def scheduler(args: EngineArgs, defaults: Defaults, length: int) -> SchedulerConfig:
    """The limits of a step. max_num_seqs never exceeds the tokens of one step. Without chunked prefill a step holds the
    longest prompt."""
    mode = MODES[args.performance_mode]
    seqs = args.max_num_seqs or int((defaults.max_num_seqs or MAX_SEQS) * mode.seqs)
    tokens = args.max_num_batched_tokens or int((defaults.max_num_batched_tokens or MAX_BATCHED_TOKENS) * mode.tokens)
    seqs = min(seqs, args.max_num_active_seqs or seqs)
    tokens = min(tokens, args.max_num_scheduled_tokens or tokens)
    if not args.enable_chunked_prefill and tokens < length:
        if args.max_num_batched_tokens:
            raise ConfigError(
                f"max_num_batched_tokens {tokens} is below max_model_len {length}: without chunked prefill a prompt must fit "
                "one step; raise it, lower max_model_len, or leave chunked prefill on"
            )
        tokens = length
    if seqs > tokens:
        if args.max_num_seqs and args.max_num_batched_tokens:
            raise ConfigError(
                f"max_num_batched_tokens {tokens} is below max_num_seqs {seqs}: every running sequence needs a token per step"
            )
        seqs, tokens = (seqs, seqs) if args.max_num_seqs else (tokens, tokens)
    depth = 1 if args.async_scheduling is False else defaults.pipeline_depth or (2 if args.async_scheduling else 1)
    if args.async_scheduling is not False:
        depth = max(depth, args.pipeline_parallel_size)
    return SchedulerConfig(
        max_seqs=seqs,
        token_budget=tokens,
        policy=args.scheduling_policy,
        chunked_prefill=args.enable_chunked_prefill,
        max_partial_prefills=args.max_num_partial_prefills,
        max_long_partial_prefills=args.max_long_partial_prefills,
        max_prefill_slowdown=mode.slowdown if args.max_prefill_slowdown is None else args.max_prefill_slowdown,
        long_prefill_threshold=args.long_prefill_token_threshold,
        whole_prompts=args.scheduler_reserve_full_isl,
        watermark=args.watermark,
        prefill_interval=args.prefill_schedule_interval,
        log_steps=args.enable_logging_iteration_details,
        pipeline_depth=depth,
        speculation=read_speculation_config(args),
        adapter_slots=args.max_loras if args.enable_lora else 0,
        stages=args.pipeline_parallel_size,
        jump_forward=bool((args.structured_outputs_config or {}).get("enable_jump_forward")),
    )


def block_tokens(args: EngineArgs, defaults: Defaults) -> int:
    return args.block_size or defaults.block_tokens or BLOCK_TOKENS


def state_tokens(args: EngineArgs, spec: ModelSpec, block_tokens: int) -> int:
    """Tokens from one state that the prefix cache keeps of recurrent layers to the next: a multiple of block_tokens. Without a
    prefix cache, more than any sequence has. ConfigError."""
    explicit = args.mamba_block_size
    if explicit is not None and not any(isinstance(s, StateSpec) for s in sizes.cache_specs(spec, "float32", "", 1)):
        raise ConfigError("mamba_block_size: this model has no recurrent layers; omit it")
    if not args.enable_prefix_caching:
        if explicit is not None:
            raise ConfigError("mamba_block_size: without prefix caching no state is kept for others; omit it")
        return (1 << 30) // block_tokens * block_tokens
    if explicit is not None and explicit % block_tokens:
        raise ConfigError(f"mamba_block_size: {explicit} is no multiple of the {block_tokens} tokens of a block (block_size)")
    return explicit or max(1, STATE_TOKENS // block_tokens) * block_tokens


def with_states(args: EngineArgs, groups: Sequence[KVSpec], memory_bytes: int, schedule: SchedulerConfig) -> SchedulerConfig:
    """No more sequences at once than half of the cache holds the states of, unless the user asked for a number."""
    each = cache_cost(groups, 0, 1) - cache_cost(groups, 0, 0)
    if args.max_num_seqs or args.num_gpu_blocks_override or not each:
        return schedule
    return msgspec.structs.replace(schedule, max_seqs=min(schedule.max_seqs, max(1, memory_bytes // 2 // each)))


def cache_bytes(args: EngineArgs, defaults: Defaults, memory: Memory, weights: int, others: int) -> int:
    """Bytes of the KV cache: user > platform > the memory fraction minus weights and `others` (workspace, token history).
    ConfigError, with the sum, if nothing remains."""
    if args.kv_cache_memory_bytes:
        return args.kv_cache_memory_bytes
    if defaults.kv_cache_bytes is not None:
        return defaults.kv_cache_bytes
    allowed = int(memory.total * args.gpu_memory_utilization)
    left = allowed - (memory.total - memory.free) - weights - others
    if left <= 0:
        raise ConfigError(
            f"gpu_memory_utilization: {args.gpu_memory_utilization:g} of {_gib(memory.total)} is {_gib(allowed)}; in use "
            f"already {_gib(memory.total - memory.free)}, weights {_gib(weights)}, workspace {_gib(others)}: "
            f"{_gib(-left)} too little. Free memory, raise it, lower max_num_batched_tokens or max_num_seqs, or choose a "
            "smaller model or a larger device"
        )
    return left


def _gib(n: int) -> str:
    return f"{n / (1 << 30):.2f} GiB"


@dataclass(frozen=True, slots=True)
class CacheSize:
    blocks: tuple[int, ...]
    """Per group, scratch included."""
    max_len: int
    """Lower than the model's limit if the cache cannot hold one such sequence and the user did not insist."""
    tokens: int
    """Tokens that fit in every group."""


def cache_cost(groups: Sequence[KVSpec], tokens: int, seqs: int) -> int:
    """Bytes of a cache of `tokens` tokens that belong to at most `seqs` running sequences, scratch included."""
    return sum(policy(g).num_blocks(g, tokens, seqs) * g.bytes_per_block for g in groups)


def cache_size(args: EngineArgs, groups: tuple[KVSpec, ...], memory_bytes: int, length: int, seqs: int) -> CacheSize:
    """Blocks of each group from `memory_bytes`: every group holds the same number of tokens, as many as fit. Never more than
    every sequence at full length could use. ConfigError names the flag to change."""
    bt = min(g.block_tokens for g in groups)
    each = -(-length // bt)

    def cost(blocks: int) -> int:
        return cache_cost(groups, blocks * bt, seqs)

    if args.num_gpu_blocks_override:
        n = args.num_gpu_blocks_override
        insists = args.max_model_len not in (None, -1)
        if n * bt < min(length, bt + 1) or (n * bt < length and insists):
            least = each if insists else min(each, 2)
            raise ConfigError(
                f"num_gpu_blocks_override: {n} blocks of {bt} tokens hold no sequence of {length if insists else bt + 1}; "
                f"raise it to at least {least}{', lower max_model_len' if insists else ''}, or omit it"
            )
    else:
        n = bisect_right(range(seqs * each + 1), memory_bytes, key=cost) - 1
    room = n * bt
    states = cache_cost(groups, 0, seqs) - cache_cost(groups, 0, 0)
    beside = f" beside {states:,} bytes of states of max_num_seqs {seqs}" if states else ""
    if room < min(length, bt + 1):
        raise ConfigError(
            f"kv_cache_memory_bytes: {memory_bytes:,} bytes hold {max(room, 0)} tokens ({cost(1) - cost(0):,} bytes per {bt} "
            f"tokens){beside}; raise it to at least {cost(2):,}{', or lower max_num_seqs' if states else ''}"
        )
    if room < length:
        if args.max_model_len not in (None, -1):
            raise ConfigError(
                f"max_model_len {length} needs {cost(each) - cost(0):,} bytes of KV cache{beside} and there are "
                f"{memory_bytes:,}; lower max_model_len to {room}, or raise kv_cache_memory_bytes"
            )
        length = room
    return cache_of(groups, room, length, seqs)


def cache_of(groups: Sequence[KVSpec], tokens: int, length: int, seqs: int) -> CacheSize:
    """The cache of so many tokens."""
    return CacheSize(tuple(policy(g).num_blocks(g, tokens, seqs) for g in groups), min(length, tokens), tokens)
