"""The configuration that the engine runs with (`EngineConfig`), and the names of what the user said (`thalweg.options`).

Merged once, in `engine.planning.resolve`, as user > platform > global default, then frozen and shipped to every
process. Knows no device and no tensor framework.
"""

from __future__ import annotations

from typing import Any

import msgspec

from thalweg.drafters import SpeculationConfig
from thalweg.hal.kv import KVSpec
from thalweg.options.engine import EngineArgs as EngineArgs
from thalweg.options.engine import check_args as check_args


class PoolingConfig(msgspec.Struct, kw_only=True, frozen=True):
    """What a model gives in place of tokens: a vector per sequence, or a number per class."""

    task: str
    """embed or classify."""
    mode: str
    """`models.tail.Pooling.mode`."""
    activation: str
    """What becomes of a result that is activated: normalise (divided by its length), softmax, sigmoid, none."""
    activate: bool
    """Is it, unless its request says otherwise?"""
    size: int
    """Numbers of a result."""
    labels: tuple[str, ...] = ()
    dimensions: tuple[int, ...] | None = None
    """Sizes that a request may have vectors cut to; None: none. (): any."""
    types: int = 1
    """Types of tokens that the model tells apart. A token of type n crosses as its id + n * vocab."""
    prompts: dict[str, str] = {}
    """What is put before a text, by what the request says it is for."""
    caches: bool = False
    """Do sequences share cached prefixes?"""
    form: str = ""
    each: bool = False
    step_tag: int | None = None
    columns: tuple[int, ...] = ()
    """As `models.tail.Pooling` has them."""


class SpeechConfig(msgspec.Struct, kw_only=True, frozen=True):
    """What a model that hears takes with every prompt: the log-mel spectrum of a sound of one length."""

    bins: int
    frames: int
    suppress: tuple[int, ...] = ()
    """Tokens that are never drawn."""
    begin_suppress: tuple[int, ...] = ()
    """Tokens that are not drawn first."""
    multilingual: bool = True
    """Does it know languages other than English, and translate?"""


class ModelConfig(msgspec.Struct, kw_only=True, frozen=True):
    path: str
    architecture: str
    dtype: str
    max_len: int
    vocab: int
    seed: int
    load_format: str
    quantization: str | None = None
    logprobs_mode: str
    max_logprobs: int
    hidden: int = 0
    """Of an embedded token. 0: not known."""
    hf_overrides: dict[str, Any] = {}
    pooling: PoolingConfig | None = None
    """None: it generates tokens."""
    speech: SpeechConfig | None = None
    """None: it does not hear."""

    @property
    def max_model_len(self) -> int:
        """`max_len` under the name of its flag."""
        return self.max_len

    @property
    def tasks(self) -> tuple[str, ...]:
        """What may be asked of it. A model that gives vectors scores pairs by their angle, one that gives them per token by
        MaxSim, one with a single class as it was trained to."""
        if self.pooling is None:
            return ("generate",) if self.speech is None else ("transcription",)
        each = self.pooling.each
        if self.pooling.task == "classify":
            return (*(() if each else ("classify", "score")[: 1 + (self.pooling.size == 1)]), "token_classify")
        return ("token_embed", "score") if each else ("embed", "score", "token_embed")


class DeviceConfig(msgspec.Struct, kw_only=True, frozen=True):
    platform: str
    name: str = ""
    strict_kernels: bool = False
    threads: int | None = None


class CacheConfig(msgspec.Struct, kw_only=True, frozen=True):
    block_tokens: int
    groups: tuple[KVSpec, ...]
    blocks: tuple[int, ...]
    """Per group, scratch included. The engine may hand out blocks 1..n-1."""
    prefix_caching: bool = True
    prefix_hash: str = "blake2b"
    dtype: str = ""
    """Type of keys and values in the cache. "": the model's dtype."""
    tables_kept: bool = False
    """The device keeps block tables (`hal.device.Device.keeps_tables`)."""


JUMP = 8
"""Tokens that a grammar leaves no choice about, in a step, at most: each is a row of logits."""


class SchedulerConfig(msgspec.Struct, kw_only=True, frozen=True):
    max_seqs: int
    token_budget: int
    """Per step."""
    policy: str = "fcfs"
    chunked_prefill: bool = True
    max_partial_prefills: int = 1
    max_long_partial_prefills: int = 1
    max_prefill_slowdown: float = 0.0
    long_prefill_threshold: int = 0
    """Prompts longer than this count as long. 0 = none do."""
    whole_prompts: bool = True
    """A prompt enters when there are blocks for all of it, not for its first chunk alone."""
    watermark: float = 0.0
    """Share of each group's blocks that an entering prompt leaves free."""
    log_steps: bool = False
    prefill_interval: int = 1
    """Beside running sequences prompts enter in every so many steps."""
    pipeline_depth: int = 1
    speculation: SpeculationConfig | None = None
    adapter_slots: int = 0
    """For adapters in the state. 0: requests have none."""
    jump_forward: bool = False
    """Tokens that a grammar leaves no choice about are computed together."""

    @property
    def most_drafts(self) -> int:
        """Of a sequence in a step."""
        return max(JUMP if self.jump_forward else 0, self.speculation.tokens if self.speculation is not None else 0)


class EngineConfig(msgspec.Struct, kw_only=True, frozen=True):
    """Everything the engine decided. `seed` is that of requests without one."""

    model: ModelConfig
    device: DeviceConfig
    cache: CacheConfig
    scheduler: SchedulerConfig
    engines: int = 1
    """Engines that share the requests of one client. Sizes are those of each."""

    @property
    def max_running(self) -> int:
        """Sequences that run at once, on all engines."""
        return self.engines * self.scheduler.max_seqs
