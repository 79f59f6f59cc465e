"""vLLM's configuration objects, for programs that make one and pass it to an engine. They are read-only facts: engines are
built of the EngineArgs inside."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec

from thalweg import config
from thalweg.compat.names import UsageContext
from thalweg.drafters import SpeculationConfig
from thalweg.engine.client.frontend import locate
from thalweg.engine.planning import memory, resolve
from thalweg.errors import ConfigError
from thalweg.hal import discovery
from thalweg.options.speculation import read_speculation_config


@dataclass(frozen=True)
class ModelConfig:
    model: str
    """As it was given: a name or a directory."""
    path: str
    """The directory it was found in."""
    tokenizer: str
    architecture: str
    dtype: str
    max_model_len: int
    seed: int
    quantization: str | None
    revision: str | None
    served_model_name: list[str]
    enforce_eager: bool
    hf_config: dict[str, Any]
    """config.json, with hf_overrides."""
    trust_remote_code: bool = False

    @property
    def architectures(self) -> list[str]:
        return [self.architecture]

    def get_vocab_size(self) -> int:
        return int((self.hf_config.get("text_config") or self.hf_config)["vocab_size"])


@dataclass(frozen=True)
class LoadConfig:
    load_format: str
    download_dir: str | None
    ignore_patterns: list[str]
    safetensors_load_strategy: str | None
    use_tqdm_on_load: bool


@dataclass(frozen=True)
class CacheConfig:
    block_size: int
    """Tokens."""
    num_gpu_blocks: int
    """Of the group with the smallest blocks, scratch included."""
    gpu_memory_utilization: float
    cache_dtype: str
    enable_prefix_caching: bool


@dataclass(frozen=True)
class SchedulerConfig:
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    policy: str
    enable_chunked_prefill: bool


@dataclass(frozen=True)
class ParallelConfig:
    tensor_parallel_size: int
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1

    @property
    def world_size(self) -> int:
        return self.tensor_parallel_size


class VllmConfig:
    """The configuration of an engine with these arguments, from its plan (`thalweg plan`). Parts are computed on first use.
    An engine measures its memory again when it starts."""

    def __init__(self, engine_args: config.EngineArgs) -> None:
        """Raises the errors of an engine with these arguments and files."""
        self.engine_args = engine_args
        self._located = locate(engine_args)

    @cached_property
    def _plan(self) -> memory.Plan:
        return memory.plan(self._located.args)

    @cached_property
    def model_config(self) -> ModelConfig:
        args, plan = self.engine_args, self._plan
        return ModelConfig(
            args.model, str(self._located.path), args.tokenizer or args.model, plan.architecture, plan.dtype,
            plan.max_model_len, args.seed, args.quantization, args.revision, list(args.served_model_name or [args.model]),
            args.enforce_eager, dict(self._located.config),
        )  # fmt: skip

    @cached_property
    def load_config(self) -> LoadConfig:
        a = self.engine_args
        return LoadConfig(
            a.load_format, a.download_dir, list(a.ignore_patterns), a.safetensors_load_strategy, a.use_tqdm_on_load
        )

    @cached_property
    def cache_config(self) -> CacheConfig:
        a, plan = self.engine_args, self._plan
        return CacheConfig(plan.block_tokens, plan.blocks, a.gpu_memory_utilization, a.kv_cache_dtype, a.enable_prefix_caching)

    @cached_property
    def scheduler_config(self) -> SchedulerConfig:
        a, plan = self.engine_args, self._plan
        return SchedulerConfig(
            plan.max_num_seqs, plan.max_num_batched_tokens, plan.max_model_len, a.scheduling_policy, a.enable_chunked_prefill
        )

    @cached_property
    def parallel_config(self) -> ParallelConfig:
        a = self.engine_args
        return ParallelConfig(a.tensor_parallel_size, data_parallel_size=a.data_parallel_size)

    @cached_property
    def speculative_config(self) -> SpeculationConfig | None:
        return read_speculation_config(self.engine_args)


class MakesConfigs:
    """Methods of EngineArgs that make these."""

    __slots__ = ()

    def create_engine_config(self, usage_context: UsageContext | None = None, headless: bool = False) -> VllmConfig:
        """The configuration for `from_vllm_config`. usage_context: nothing is reported to anyone."""
        if headless:
            raise ConfigError("headless: only thalweg serve --headless hosts ranks for another machine; omit it")
        return VllmConfig(_args(self))

    def create_model_config(self) -> ModelConfig:
        return VllmConfig(_args(self)).model_config

    def create_load_config(self) -> LoadConfig:
        return VllmConfig(_args(self)).load_config

    def create_speculative_config(
        self, target_model_config: Any = None, target_parallel_config: Any = None
    ) -> SpeculationConfig | None:
        """Drafts come of n-grams, so nothing of the model is needed. None: there are none."""
        return read_speculation_config(_args(self))

    def get_batch_defaults(self, world_size: int = 1) -> tuple[dict[UsageContext, int], dict[UsageContext, int]]:
        """(tokens of a step, sequences at once) of this device, whoever starts the engine. world_size: nothing depends on
        it."""
        args = _args(self)
        platform = resolve.configure_platform(args, discovery.resolve_platform(args.device))
        info, facts = platform.describe(), locate(args).facts
        if info is None:
            raise ConfigError(f"device: {platform.name!r} cannot be planned for: {platform.unplannable_reason()}")
        result = resolve.scheduler(config.EngineArgs(), platform.defaults(facts, info), facts.max_len)
        return dict.fromkeys(UsageContext, result.token_budget), dict.fromkeys(UsageContext, result.max_seqs)


class MadeArgs(MakesConfigs, config.EngineArgs, kw_only=True, frozen=True):
    """thalweg's EngineArgs with vLLM's methods."""


def build_args(args: config.EngineArgs) -> MadeArgs:
    return MadeArgs(**{name: getattr(args, name) for name in config.EngineArgs.__struct_fields__})


def _args(of: object) -> config.EngineArgs:
    assert isinstance(of, config.EngineArgs)
    return msgspec.structs.replace(of)
