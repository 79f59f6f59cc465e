"""One configuration: what the user said (`EngineArgs`), and what the engine runs with (`EngineConfig`).

Merged once, in `engine.planning.resolve`, as user > platform > global default, then frozen and shipped to every
process. `None` in EngineArgs means "not said". Knows no device and no tensor framework.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from thalweg.config_objects import decoding, limits, loading, structured
from thalweg.drafters import SpeculationConfig, configure
from thalweg.errors import ConfigError
from thalweg.hal.kv import KVSpec

BUNDLED = "thalweg-nano"
"""Name of the model inside the package: the default, so that nothing needs a download."""
BUNDLED_FOLDERS = {BUNDLED: "weights", "thalweg-nano-draft": "draft", "bundled": "weights"}
"""Names of the checkpoints inside the package, and their folders in it. "bundled" is the default's name of old."""
BUNDLED_WORDS = (
    "using thalweg-nano, the bundled model: five million parameters, made for trying things out; pass {how} for a real one"
)

LOGPROBS_MODES = ("raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits")
POLICIES = ("fcfs", "priority")
DTYPES = ("auto", "half", "float16", "bfloat16", "float", "float32")
LOAD_FORMATS = ("auto", "safetensors", "hf", "gguf", "mistral", "dummy", "fastsafetensors", "runai_streamer", "instanttensor")
FASTER_READERS = ("fastsafetensors", "runai_streamer", "instanttensor")
"""Values of `load_format` that name other readers of safetensors files. Files and values are the same, so ours serves."""
_DENSE = "give the safetensors files of the same model (transformers writes them: model.save_pretrained)"
LOAD_REFUSED = {
    "pt": f"pickled files can run code and are never opened; {_DENSE}",
    "npcache": f"it unpickles .bin files, which can run code; {_DENSE}",
    "tensorizer": f"its files are not read; {_DENSE}",
    "sharded_state": f"its files are cut for one number of ranks of another engine; {_DENSE}",
    "runai_streamer_sharded": f"its files are cut for one number of ranks of another engine; {_DENSE}",
    "bitsandbytes": "leave it at auto, which reads what the checkpoint is; to round a dense one use --quantization int4",
}
"""Values of `load_format` that are not honoured, and what to do instead."""
CONFIG_FORMATS = ("auto", "hf", "mistral")
TOKENIZER_MODES = ("auto", "hf", "slow", "mistral")
_TOKENIZER = "the tokenizer of the model's files gives the same tokens; leave the mode at auto"
TOKENIZER_REFUSED = {
    "deepseek_v32": f"messages of these models are written by their chat template; {_TOKENIZER}",
    "deepseek_v4": f"messages of these models are written by their chat template; {_TOKENIZER}",
    "fastokens": _TOKENIZER,
}
"""Values of `tokenizer_mode` that are not honoured, and what to do instead."""
KV_CACHE_DTYPES = {
    "auto": "", "float32": "float32", "bfloat16": "bfloat16", "float16": "float16", "fp8": "float8_e4m3fn",
    "fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2", "int8_per_token_head": "int8",
}  # fmt: skip
"""By name: `AttnSpec.kv_dtype`."""
LOAD_STRATEGIES = ("lazy", "eager", "prefetch")
"""How weight files are read: mapped, whole before the first tensor, or ahead in the background."""
MODEL_IMPLS = ("auto", "thalweg", "vllm", "transformers")
IMPLS_REFUSED = {"terratorch": "models of images of the earth are not served; leave it at auto"}
CACHES_REFUSED = {"shm": "one process reads images, so none is shared; leave it at lru"}
PERFORMANCE_MODES = ("balanced", "interactivity", "throughput")
RUNNERS = ("auto", "generate", "pooling")
CONVERTS = ("auto", "none", "embed", "classify")
PREFIX_HASHES = ("blake2b", "sha256")
ROUNDINGS = ("int8", "int4", "w8a16", "w4a16", "w4a8", "fp8", "fp8_per_block", "mxfp4", "nvfp4")
"""Values of `quantization` that round dense weights while they are loaded (`quantization.online`)."""
SPELLINGS = {
    "fp8_per_channel": "fp8", "ptpc_fp8": "fp8", "fp8_per_tensor": "fp8", "int8_per_channel_weight_only": "w8a16",
    "nvfp4_per_token": "nvfp4",
}  # fmt: skip
"""The field's names of roundings -> ours. Of one that asks for coarser scales, or for inputs of 4 bits, ours loses less."""
CHECKPOINT_FORMATS = {
    "awq": ("awq",), "awq_marlin": ("awq",), "cpu_awq": ("awq",), "gptq": ("gptq",), "auto_gptq": ("gptq",),
    "gptq_marlin": ("gptq",), "moe_wna16": ("awq", "gptq"), "auto-round": ("auto-round", "inc"), "inc": ("auto-round", "inc"),
    "compressed-tensors": ("compressed-tensors",), "gguf": ("gguf",), "bitsandbytes": ("bitsandbytes",), "hqq": ("hqq",),
    "fp8": ("fp8",), "deepseek_v4_fp8": ("fp8", "deepseek_v4_fp8"), "fbgemm_fp8": ("fbgemm_fp8",), "mxfp8": ("mxfp8",),
    "mxfp4": ("mxfp4",), "gpt_oss_mxfp4": ("mxfp4",), "modelopt": ("modelopt",), "modelopt_fp4": ("modelopt",),
    "modelopt_mxfp8": ("modelopt",), "modelopt_mixed": ("modelopt",), "nvfp4": ("modelopt",), "quark": ("quark",),
    "torchao": ("torchao",), "bitnet": ("bitnet",),
}  # fmt: skip
"""Values of `quantization` that name what a checkpoint is held in anyway -> names of formats (`quantization.registry`)."""
QUANTIZATIONS = tuple(dict.fromkeys((*ROUNDINGS, *SPELLINGS, *CHECKPOINT_FORMATS)))


class Tail(msgspec.Struct, frozen=True):
    """What the user says of whether a model generates text, or gives vectors or classes (`checkpoint.tail`)."""

    runner: str = "auto"
    convert: str = "auto"
    pooler: dict[str, Any] | None = None


class EngineArgs(msgspec.Struct, kw_only=True, frozen=True):
    """Engine settings under their public names (flags with `-` for `_`). Only what this version honours is here."""

    model: str = BUNDLED
    tokenizer: str | None = None
    tokenizer_mode: str = "auto"
    """mistral: of tekken.json or tokenizer.model.v*. hf (and slow): of tokenizer.json, or what transformers reads. auto:
    what is there, tokenizer.json first."""
    revision: str | None = None
    tokenizer_revision: str | None = None
    download_dir: str | None = None
    ignore_patterns: list[str] = msgspec.field(default_factory=lambda: ["original/*", "consolidated*"])
    """Files of a repository that are not downloaded, by shell patterns of their paths. As it stands: second copies of the
    weights in other layouts."""
    hf_token: str | bool | None = None
    skip_tokenizer_init: bool = False
    trust_remote_code: bool = False
    """Accepted only as False: code from model repositories is never run."""
    served_model_name: list[str] | None = None
    hf_overrides: dict[str, Any] | None = None
    hf_config_path: str | None = None
    """A directory whose config.json describes the model, in place of the one beside its weights."""
    model_impl: str = "auto"
    """thalweg (or vllm): its own family. transformers: transformers' own module (`models.fallback`). auto: the family, and
    where there is none the module."""
    runner: str = "auto"
    """What the model is for: generate, or pooling (vectors, classes, scores); auto: what its files say."""
    convert: str = "auto"
    """embed: vectors from a model that generates. none: the model as it is."""
    pooler_config: dict[str, Any] | None = None
    """How a pooling model pools, in place of what its files say: {"pooling_type": "MEAN", "use_activation": false}."""
    generation_config: str = "auto"
    """auto: generation_config.json of the model. thalweg (or vllm): none. Otherwise a directory."""
    override_generation_config: dict[str, Any] | None = None

    device: str = "auto"
    dtype: str = "auto"
    quantization: str | None = None
    """Round dense weights while they are loaded (ROUNDINGS, SPELLINGS), or the format that the checkpoint is known to have
    (CHECKPOINT_FORMATS): another one is refused. None = as the checkpoint holds them."""
    seed: int = 0
    max_model_len: int | None = None
    config_format: str = "auto"
    """hf: config.json. mistral: params.json, with consolidated weights. auto: what is there, config.json first."""
    load_format: str = "auto"
    safetensors_load_strategy: str | None = None
    """One of LOAD_STRATEGIES. None: lazy."""
    safetensors_prefetch_num_threads: int = 8
    safetensors_prefetch_block_size: int = 1 << 24
    """Bytes of one read of eager and prefetch."""
    model_loader_extra_config: dict[str, Any] | None = None
    """How files are read, as other loaders call it: {"enable_multithread_load": true, "num_threads": 8} is prefetch by so many
    threads, and {"concurrency": 8} says their number alone."""
    use_tqdm_on_load: bool = True
    strict_kernels: bool = False
    batch_invariant: bool | None = None
    """Use only kernels whose rows do not depend on the rest of the batch: same seed, same text, whatever else runs.
    None: wherever the device has them. True: refuse to start where it has not. False: the fastest kernels."""
    attention_backend: str = "auto"
    """Which of the device's kinds of attention is used, by our name or the field's (CPU_ATTN, TRITON_ATTN, ...). auto:
    the first that can do what a layer needs."""
    enforce_eager: bool = False
    """Run every step as it is written: no graph is captured, nothing is recorded. Refused where a compiler makes every step."""
    cudagraph_capture_sizes: list[int] | None = None
    """Sequences of the decoding steps that graphs are captured for. None: the platform's choice. Refused where none are."""
    max_cudagraph_capture_size: int | None = None
    """Sequences of the largest of them. Steps of more run uncaptured."""
    renderer_num_workers: int = 2
    """Processes that render chat templates."""
    threads: int | None = None
    """CPU threads of the engine process. None = the platform's choice."""
    additional_config: dict[str, Any] | None = None
    """The platform's own knobs, by name."""
    device_ids: list[int] | None = None
    """Which of the machine's devices are used, by the driver's numbers from 0: as many as the model needs. None: the first."""
    tensor_parallel_size: int = 1
    """Devices that share the model, each with its part of every layer. More than one only where one process drives them all."""

    block_size: int | None = None
    kv_cache_dtype: str = "auto"
    """Type of keys and values in the cache. auto: what the checkpoint means them to be cached in, else the model's dtype."""
    kv_cache_dtype_skip_layers: list[str] = msgspec.field(default_factory=list)
    """Layers whose keys and values keep the model's dtype: their numbers, and "sliding_window" for those that have one."""
    kv_cache_memory_bytes: int | None = None
    num_gpu_blocks_override: int | None = None
    gpu_memory_utilization: float = 0.92
    mamba_block_size: int | None = None
    """Tokens from one state of recurrent layers that the prefix cache keeps to the next: a multiple of block_size. None: about
    1024."""
    enable_prefix_caching: bool = True
    prefix_caching_hash_algo: str = "blake2b"
    """Hash by which blocks are looked up. Each is keyed with a secret of the process, and hits are compared, so it
    changes no answer."""
    disable_sliding_window: bool = False
    """Attend to everything, and serve no context longer than the model's window."""

    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_active_seqs: int | None = None
    """Sequences that run at once, at most max_num_seqs. None: as many."""
    max_num_scheduled_tokens: int | None = None
    """Tokens of a step, at most max_num_batched_tokens. None: as many."""
    performance_mode: str = "balanced"
    """interactivity: steps of half the tokens, and streams slowed by prompts at most by a quarter. throughput: twice the
    sequences and tokens, and no bound on how prompts slow streams. Settings that are given win over it."""
    enable_chunked_prefill: bool = True
    max_num_partial_prefills: int = 4
    """Prompts in progress at once. They share a step's tokens fairly."""
    max_long_partial_prefills: int = 1
    max_prefill_slowdown: float | None = None
    """Running streams are slowed at most by this factor while other requests' prompts are computed. 0 = no limit. None: by
    performance_mode, 2 where that is balanced."""
    long_prefill_token_threshold: int = 0
    scheduler_reserve_full_isl: bool = True
    """A prompt starts when the cache has room for all of it. False: for its first chunk, so that more may be preempted."""
    watermark: float = 0.0
    """Share of the cache's blocks that stays free when a prompt starts beside running sequences."""
    prefill_schedule_interval: int = 1
    """While sequences run, prompts start in every so many steps only."""
    scheduling_policy: str = "fcfs"
    stream_interval: int = 1
    """Tokens of a streamed answer that are told together, after its first. What is left is told at its end."""
    speculative_config: dict[str, Any] | None = None
    """Drafts to verify: {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 2, "prompt_lookup_max": 4}. The
    text is the same without."""
    spec_method: str | None = None
    spec_tokens: int | None = None
    """Short for "method" and "num_speculative_tokens" of speculative_config."""
    async_scheduling: bool | None = None
    """False: read every step before the next is scheduled. None: the platform's pipeline depth."""

    heartbeat_timeout: float = 8.0
    """Seconds without a sign of life after which the engine process counts as stuck, and is replaced."""
    hang_timeout: float = 60.0
    """Seconds without a finished step, while there is work, after which it counts as stuck. A step of a large model on a slow
    device must fit."""
    max_restarts: int = 5
    """Engine restarts within ten minutes before the server gives up."""
    standby_engine: bool = True
    """Keep a process with the engine's code loaded, so that a restart does not wait for that. It holds no device and no
    weights, only host memory for the code."""

    structured_outputs_config: dict[str, Any] | None = None
    """Of every request's structured output: {"backend": "guidance", "disable_any_whitespace": true,
    "disable_additional_properties": true}. With "enable_jump_forward": true, tokens that a grammar leaves no choice about are
    computed together."""

    reasoning_config: dict[str, Any] | None = None
    """What begins and ends reasoning, for thinking_token_budget: {"reasoning_start_str": "<think>", "reasoning_end_str":
    "</think>"}, or {"reasoning_parser": name}. None: those two, where they are tokens."""

    enable_sleep_mode: bool = False
    """May the engine be put to sleep, and give its memory back until it is woken?"""

    profiler_config: dict[str, Any] | None = None
    """What /start_profile records: {"profiler": "torch", "torch_profiler_dir": folder}, and fields of `ProfilerConfig`."""

    logprobs_mode: str = "raw_logprobs"
    max_logprobs: int = 20
    disable_log_stats: bool = False
    enable_logging_iteration_details: bool = False
    """A line of the log for each step: its prompt tokens, its decoding sequences, its time."""

    allowed_media_domains: list[str] | None = None
    """Hosts whose http and https URLs requests may have fetched. None: data: URLs alone are read."""
    allowed_local_media_path: str | None = None
    """A directory whose files requests may have read, by file: URLs. None: none are."""
    limit_mm_per_prompt: dict[str, Any] | None = None
    """Images and sounds that one prompt may have: {"image": 4, "audio": 2}. None: 16 of each."""
    mm_processor_kwargs: dict[str, Any] | None = None
    """Settings of images in place of those of the model's files: {"max_pixels": 1003520}. One that nothing reads is refused."""
    media_io_kwargs: dict[str, Any] | None = None
    """How files are decoded: {"image": {"rgba_background_color": [255, 255, 255]}}, what shows through a picture."""
    mm_processor_cache_gb: float = 0.25
    """GiB of images that are kept as the model takes them, so that the next turn of a conversation decodes none. 0: none."""
    mm_processor_cache_type: str = "lru"
    disable_chunked_mm_input: bool = False
    """Compute all of an image's tokens in one step."""
    language_model_only: bool = False
    """Leave the encoders of images and sounds out, and refuse these."""

    @property
    def tail(self) -> Tail:
        """What was said of whether the model generates."""
        return Tail(self.runner, self.convert, self.pooler_config)

    @property
    def reading(self) -> tuple[str, int]:
        """(one of LOAD_STRATEGIES, threads): how weight files are read."""
        said = self.model_loader_extra_config or {}
        strategy = "prefetch" if said.get("enable_multithread_load") else "lazy"
        threads = said.get("num_threads", said.get("concurrency", self.safetensors_prefetch_num_threads))
        return self.safetensors_load_strategy or strategy, threads

    @property
    def kv_dtype(self) -> str:
        """`kv_cache_dtype` as backends know it (`AttnSpec.kv_dtype`). "": the model's dtype."""
        return KV_CACHE_DTYPES[self.kv_cache_dtype]


class ProfilerConfig(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Of torch.profiler, in the engine's process."""

    profiler: Literal["torch"]
    torch_profiler_dir: str
    torch_profiler_with_stack: bool = True
    torch_profiler_with_flops: bool = False
    torch_profiler_use_gzip: bool = True
    torch_profiler_record_shapes: bool = False
    torch_profiler_with_memory: bool = False
    delay_iterations: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Steps between start and the first that is recorded."""
    max_iterations: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Steps that are recorded, at the most; 0: until it is stopped."""


def profiling(args: EngineArgs) -> ProfilerConfig | None:
    """What profiles record. None: there are none. ConfigError names the field."""
    said = args.profiler_config
    if not said or said.get("profiler", "") is None:
        return None
    try:
        made = msgspec.convert(said, ProfilerConfig)
    except msgspec.ValidationError as e:
        known = ", ".join(ProfilerConfig.__struct_fields__)
        raise ConfigError(f"profiler_config: {e}; this version has {known}, and the profiler torch alone") from None
    if not made.torch_profiler_dir.startswith("/"):
        raise ConfigError(f"profiler_config: torch_profiler_dir: {made.torch_profiler_dir!r} must be an absolute folder")
    return made


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


class SoundConfig(msgspec.Struct, kw_only=True, frozen=True):
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
    sound: SoundConfig | None = None
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
            return ("generate",) if self.sound is None else ("transcription",)
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


REFUSED = {
    "mm_processor_cache_type": CACHES_REFUSED,
    "load_format": LOAD_REFUSED,
    "tokenizer_mode": TOKENIZER_REFUSED,
    "model_impl": IMPLS_REFUSED,
}
_POSITIVE = ("max_model_len", "block_size", "mamba_block_size", "kv_cache_memory_bytes", "num_gpu_blocks_override",
             "max_num_seqs", "max_num_batched_tokens", "threads", "tensor_parallel_size", "max_num_partial_prefills",
             "max_long_partial_prefills", "stream_interval", "max_num_active_seqs", "max_num_scheduled_tokens",
             "safetensors_prefetch_num_threads", "safetensors_prefetch_block_size", "max_cudagraph_capture_size",
             "renderer_num_workers", "prefill_schedule_interval")  # fmt: skip


def speculation(args: EngineArgs) -> SpeculationConfig | None:
    """What drafts were asked for. None: none. ConfigError lists everything that is wrong with it."""
    said = dict(args.speculative_config or {})
    for key, value in (("method", args.spec_method), ("num_speculative_tokens", args.spec_tokens)):
        if value is not None and said.setdefault(key, value) != value:
            raise ConfigError(f"speculative_config: {key} is {said[key]!r} there and {value!r} in its short flag; give one")
    if not said:
        return None
    return configure(said)


def check_args(args: EngineArgs) -> None:
    """Everything that can be wrong without knowing model or device. ConfigError lists it all."""
    problems = []
    for name in _POSITIVE:
        value = getattr(args, name)
        if value is not None and value < 1 and not (name == "max_model_len" and value == -1):
            problems.append(f"{name} must be at least 1, not {value}")
    for name, choices in (
        ("dtype", DTYPES),
        ("kv_cache_dtype", KV_CACHE_DTYPES),
        ("load_format", LOAD_FORMATS),
        ("config_format", CONFIG_FORMATS),
        ("tokenizer_mode", TOKENIZER_MODES),
        ("prefix_caching_hash_algo", PREFIX_HASHES),
        ("logprobs_mode", LOGPROBS_MODES),
        ("scheduling_policy", POLICIES),
        ("model_impl", MODEL_IMPLS),
        ("runner", RUNNERS),
        ("convert", CONVERTS),
        ("performance_mode", PERFORMANCE_MODES),
        ("safetensors_load_strategy", (*LOAD_STRATEGIES, None)),
        ("mm_processor_cache_type", ("lru",)),
    ):
        value, refused = getattr(args, name), REFUSED.get(name, {})
        if value in refused:
            problems.append(f"{name}: {value}: {refused[value]}")
        elif value not in choices:
            problems.append(f"{name} must be one of {', '.join(filter(None, choices))}, not {value!r}")
    if args.quantization is not None and args.quantization not in QUANTIZATIONS:
        problems.append(
            f"quantization must be one of {', '.join(QUANTIZATIONS)}, not {args.quantization!r} (a checkpoint that is "
            "quantised already says so itself, and needs no flag)"
        )
    if not 0 < args.gpu_memory_utilization <= 1:
        problems.append(f"gpu_memory_utilization must be in (0, 1], not {args.gpu_memory_utilization}")
    for part, whole in (("max_num_active_seqs", "max_num_seqs"), ("max_num_scheduled_tokens", "max_num_batched_tokens")):
        least, most = getattr(args, part), getattr(args, whole)
        if least is not None and most is not None and least > most:
            problems.append(f"{part} ({least}) must not exceed {whole} ({most})")
    sizes = args.cudagraph_capture_sizes
    if sizes is not None and (not sizes or min(sizes) < 1):
        problems.append(f"cudagraph_capture_sizes must be sizes of at least 1, not {sizes}")
    if args.renderer_num_workers > 64:
        problems.append(f"renderer_num_workers must be at most 64, not {args.renderer_num_workers}")
    if args.max_logprobs < -1:
        problems.append(f"max_logprobs must be -1 (no limit) or at least 0, not {args.max_logprobs}")
    if args.long_prefill_token_threshold < 0:
        problems.append(f"long_prefill_token_threshold must be at least 0, not {args.long_prefill_token_threshold}")
    if args.max_long_partial_prefills > args.max_num_partial_prefills:
        problems.append("max_long_partial_prefills must not exceed max_num_partial_prefills")
    for name in ("heartbeat_timeout", "hang_timeout"):
        if not 1 <= getattr(args, name) <= 86400:
            problems.append(f"{name} must be between 1 and 86400 seconds, not {getattr(args, name)}")
    if args.max_prefill_slowdown and not 1 < args.max_prefill_slowdown <= 1e6:
        problems.append(f"max_prefill_slowdown must be above 1, or 0 for no limit, not {args.max_prefill_slowdown}")
    if not 0 <= args.watermark < 1:
        problems.append(f"watermark must be at least 0 and below 1, not {args.watermark:g}")
    if args.max_restarts < 0:
        problems.append(f"max_restarts must be at least 0, not {args.max_restarts}")
    for parse in (speculation, profiling):
        try:
            parse(args)
        except ConfigError as e:
            problems += e.problems
    if not 0 <= args.mm_processor_cache_gb <= 1024:
        problems.append(f"mm_processor_cache_gb must be between 0 (none) and 1024, not {args.mm_processor_cache_gb:g}")
    problems += limits(args.limit_mm_per_prompt or {})
    problems += decoding(args.media_io_kwargs or {})
    problems += loading(args.model_loader_extra_config or {})
    if args.device_ids is not None and (not args.device_ids or min(args.device_ids) < 0):
        problems.append(f"device_ids must be numbers of devices, from 0, not {args.device_ids}")
    problems += structured(args.structured_outputs_config or {})
    if odd := [s for s in args.kv_cache_dtype_skip_layers if not s.isdecimal() and s != "sliding_window"]:
        problems.append(f"kv_cache_dtype_skip_layers: {odd[0]!r:.40} is neither a layer's number nor sliding_window")
    if args.trust_remote_code:
        problems.append("trust_remote_code: code from model repositories is never run; leave it out")
    if problems:
        raise ConfigError(*problems)
