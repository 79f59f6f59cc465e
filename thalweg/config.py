"""The configuration that the engine runs with (`EngineConfig`), and the user's options (`thalweg.options`).

Merged once, in `engine.planning.resolve`, as user > platform > global default, then frozen and shipped to every process.
Knows no device and no tensor framework.
"""

from __future__ import annotations

from typing import Any

import msgspec

from thalweg.drafters import SpeculationConfig
from thalweg.hal.kv import KVSpec
from thalweg.options.engine import EngineArgs as EngineArgs
from thalweg.options.engine import check_args as check_args


class PoolingConfig(msgspec.Struct, kw_only=True, frozen=True):
    """The result of a pooling model: a vector per sequence, or a number per class."""

    task: str
    """embed, classify, transcription or speech."""
    mode: str
    """`models.tail.Pooling.mode`."""
    activation: str
    """The activation of a result: normalise (divided by its length), softmax, sigmoid, none."""
    activate: bool
    """Default for requests without `use_activation`."""
    size: int
    """Numbers of a result."""
    labels: tuple[str, ...] = ()
    dimensions: tuple[int, ...] | None = None
    """Sizes to which a request may cut vectors. None: none. (): any."""
    types: int = 1
    """Token types of the model. A token of type n is encoded as id + n * vocab."""
    prompts: dict[str, str] = {}
    """Prefixes of a text, by the name that a request gives."""
    caches: bool = False
    """Do sequences share cached prefixes?"""
    form: str = ""
    each: bool = False
    step_tag: int | None = None
    columns: tuple[int, ...] = ()
    encoded: bool = False
    fills: bool = False
    """As `models.tail.Pooling` has them."""


class SpeechConfig(msgspec.Struct, kw_only=True, frozen=True):
    """The input of a speech model, sent with every prompt: the log-mel spectrum of a clip of fixed length, or samples."""

    bins: int
    """Of the spectrum. 0: the model reads samples."""
    frames: int
    """Hundredths of a second of the longest clip."""
    suppress: tuple[int, ...] = ()
    """Tokens that must not be sampled."""
    begin_suppress: tuple[int, ...] = ()
    """Tokens never sampled first."""
    multilingual: bool = True
    """Does it support languages other than English, and translation?"""
    heads: int = 0
    """Heads of cross attention that align tokens with the audio. 0: the files name none."""
    form: str = "whisper"
    """The form of features (`media.source_features`) and of prompts (`server.audio.transcriptions`)."""
    start: tuple[int, ...] = ()
    """The prompt of every transcript, in models with one. (): prompts name languages and tasks."""


class SourceConfig(msgspec.Struct, kw_only=True, frozen=True):
    """The input of a model with a text encoder: a source, which every prompt is."""

    tokens: int
    """Of the longest source."""
    start: tuple[int, ...]
    """The decoder's first token."""
    forced: tuple[int, ...] = ()
    """The token after it, unless a request says another: the language of translations, for instance."""
    suppress: tuple[int, ...] = ()
    """Tokens that must not be sampled."""
    placeholder: int = -1
    """The token of a vector that another encoder computes. -1: there is none."""
    end: int | None = None
    """Of a pooling model, whose decoder reads the source too: the last token of this id is where it ends. `start` is () if the
    source's last token comes first."""


USES = {
    "speech": "LLM.speak, or /v1/audio/speech of `thalweg serve`",
    "transcription": "/v1/audio/transcriptions of `thalweg serve`",
    "embed": "LLM.embed, or /v1/embeddings of `thalweg serve`",
    "classify": "LLM.classify, or /classify of `thalweg serve`",
    "score": "LLM.score, or /score of `thalweg serve`",
    "token_embed": "LLM.encode, or /pooling of `thalweg serve`",
    "token_classify": "LLM.encode, or /pooling of `thalweg serve`",
}
"""Task of a model that does not generate text (`ModelConfig.tasks`) -> how it is used."""


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
    """Width of an embedded token. 0: unknown."""
    hf_overrides: dict[str, Any] = {}
    pooling: PoolingConfig | None = None
    """None: it generates tokens."""
    speech: SpeechConfig | None = None
    """None: not a speech model."""
    speaks: bool = False
    """Are its tokens frames of speech, for its codec?"""
    returns_states: bool = False
    """Are hidden states of prompt tokens returned on request?"""
    speech_end: int = -1
    """The token after the last of these frames. -1: its tokens are no frames."""
    transcribes: bool = False
    """Does it read audio in conversations, and is it trained to transcribe?"""
    source: SourceConfig | None = None
    """None: it has no text encoder apart from its decoder."""
    source_columns: int = 0
    """Columns of an image's array, of a model whose cross-attention reads images. 0: there is none."""
    source_required: bool = False
    """Does every prompt need an image, of such a model?"""
    prefix_lm: bool = False
    """Do all tokens of a prompt attend to each other?"""
    prompt_ids: dict[int, int] = {}
    """Ids behind the vocabulary, which only prompts contain -> ids of unused tokens with their embeddings."""

    @property
    def prompt_limit(self) -> int:
        """Tokens of the context that a prompt lies in. A text encoder has a separate one. A prompt of a pooling model lies in
        both."""
        if self.source is None:
            return self.max_len
        return self.source.tokens if self.pooling is None else min(self.max_len, self.source.tokens)

    @property
    def longest_prompt(self) -> int:
        """Tokens. A prompt in the decoder's context leaves room for one token."""
        return self.prompt_limit - (self.pooling is None and self.source is None)

    @property
    def max_model_len(self) -> int:
        """`max_len` under the name of its flag."""
        return self.max_len

    @property
    def tasks(self) -> tuple[str, ...]:
        """Supported tasks. An embedding model scores pairs by their vectors' angle, or by MaxSim with vectors per token; a
        classifier with a single class scores them as trained."""
        if self.speaks:
            return ("speech",)
        if self.pooling is None:
            return ("transcription",) if self.speech else ("generate", "transcription") if self.transcribes else ("generate",)
        if self.pooling.task in ("transcription", "speech"):
            return (self.pooling.task,)
        each = self.pooling.each
        if self.pooling.task == "classify":
            whole = () if each else ("classify", "score")[: 1 + (self.pooling.size == 1)]
            return whole if self.source is not None else (*whole, "token_classify")
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
    max_retention: float = 3600.0
    """Most seconds for which a request's blocks are kept (`EngineRequest.retain`)."""


JUMP = 8
"""Most tokens forced by a grammar in a step: each is a row of logits."""


class SchedulerConfig(msgspec.Struct, kw_only=True, frozen=True):
    max_seqs: int
    token_budget: int
    """Tokens of a step."""
    policy: str = "fcfs"
    chunked_prefill: bool = True
    max_partial_prefills: int = 1
    max_long_partial_prefills: int = 1
    max_prefill_slowdown: float = 0.0
    long_prefill_threshold: int = 0
    """Prompts longer than this count as long. 0 = none do."""
    whole_prompts: bool = True
    """A prompt enters when there are blocks for the whole prompt, not only for its first chunk."""
    watermark: float = 0.0
    """Share of each group's blocks that an entering prompt leaves free."""
    log_steps: bool = False
    prefill_interval: int = 1
    """While sequences run, prompts enter in every so many steps."""
    pipeline_depth: int = 1
    stages: int = 1
    """Stages of layers that a step passes. Of more than one, a sequence is in one step at a time, as its next token is known
    only once the last stage has run."""
    speculation: SpeculationConfig | None = None
    adapter_slots: int = 0
    """Slots for adapters in the state. 0: requests have none."""
    jump_forward: bool = False
    """Tokens forced by a grammar are computed together."""

    @property
    def most_drafts(self) -> int:
        """Most drafts of a sequence in a step."""
        return max(JUMP if self.jump_forward else 0, self.speculation.tokens if self.speculation is not None else 0)


class EngineConfig(msgspec.Struct, kw_only=True, frozen=True):
    """All decisions of the engine. `seed` is for requests without one."""

    model: ModelConfig
    device: DeviceConfig
    cache: CacheConfig
    scheduler: SchedulerConfig
    engines: int = 1
    """Engines that share the requests of one client. Sizes are those of each."""
    first_engine: int = 0
    """Number of the first, among those of all servers behind one balancer."""

    @property
    def max_running(self) -> int:
        """Sequences that run at once, on all engines."""
        return self.engines * self.scheduler.max_seqs
