"""From what the user asked to a running device: open it, build the model on it, load, size the cache, compile."""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thalweg.checkpoint import ahead
from thalweg.checkpoint.config import facts as read_facts
from thalweg.checkpoint.config import generation_defaults
from thalweg.config import (
    FASTER_READERS,
    SPELLINGS,
    CacheConfig,
    DeviceConfig,
    EngineArgs,
    EngineConfig,
    ModelConfig,
    PoolingConfig,
    SchedulerConfig,
    SoundConfig,
    check_args,
)
from thalweg.engine.planning import described, resolve
from thalweg.engine.planning.memory import encoded, gib, history, plan, step_sizes, to_load
from thalweg.engine.worker import rehearsal
from thalweg.engine.worker.rehearsal import decodes, prompts
from thalweg.engine.worker.runner import Runner
from thalweg.errors import CheckpointError, ConfigError, ThalwegError
from thalweg.hal import discovery
from thalweg.hal.attention import AttentionBackend, named_attention
from thalweg.hal.device import Background, Device, Pending
from thalweg.hal.kv import KVLayout, KVSpec
from thalweg.hal.op import Binder
from thalweg.hal.platform import Defaults, Limits, ModelInfo, Platform
from thalweg.hal.step import StateBox, StepBatch, StepShape
from thalweg.host.marks import mark
from thalweg.media.listeners import listener
from thalweg.media.processors import processor
from thalweg.models import registry, sizes
from thalweg.models.fallback.spec import UNRELIABLE, ForeignSpec
from thalweg.models.spec import ModelSpec, describe_stretch
from thalweg.quantization import online
from thalweg.quantization import registry as formats

if TYPE_CHECKING:
    from thalweg.engine.control.encodings import Encoder
    from thalweg.models.build import Model

logger = logging.getLogger(__name__)
ENGLISH_VOCAB = 51_864
"""Tokens of Whisper's models for English alone, which are one fewer than the others'."""

POPULATED = 4096
"""Tokens beyond those the cache has held so far, for which an idle engine has memory ready."""


@dataclass(slots=True)
class Worker:
    """A device with a model on it, ready to run steps."""

    config: EngineConfig
    launch: Callable[[StepBatch], Pending]
    plan: list[str]
    """The kernel plan, a line per choice."""
    device: Device
    load_seconds: float
    encoder: Encoder | None = None
    """Makes vectors of images and sounds. None: the model reads text alone."""
    populate: Callable[[Sequence[int]], bool] | None = None
    """`Device.populate` of all caches. It is given how many first blocks of each KV group have been in use."""

    def close(self) -> None:
        self.device.close()


@dataclass(frozen=True, slots=True)
class _Job:
    """What every stage of a build reads."""

    args: EngineArgs
    path: Path
    hf: dict[str, Any]
    facts: ModelInfo
    spec: ModelSpec
    platform: Platform
    device: Device
    defaults: Defaults


def prepare(device: str, expected: EngineArgs | None = None) -> None:
    """Load the code that serving on `--device device` needs; open nothing. What is not there, or wrong, is `build`'s to refuse.
    expected: what it will be asked to build."""
    try:
        platform = discovery.asked(device)
        if platform.runs_models:
            if expected is not None:
                _expect(platform, expected)
            platform.preload()  # first: how its framework is imported is the platform's to say
            import thalweg.models.build
            import thalweg.models.load
            import thalweg.models.step  # noqa: F401
    except (ThalwegError, ImportError):
        return
    mark("framework imported")


@contextlib.contextmanager
def expected(args: EngineArgs) -> Iterator[None]:
    """Around what leads to `build` in a process that builds once: the platform begins what other threads can do meanwhile. It
    takes that back where it comes to nothing."""
    platform = None
    with contextlib.suppress(ThalwegError, ImportError):
        platform = discovery.asked(args.device)
    if platform is None or not platform.runs_models:
        yield
        return
    platform.begin()
    _expect(platform, args)
    try:
        yield
    except BaseException:
        platform.expect(0)
        raise


def _expect(platform: Platform, args: EngineArgs) -> None:
    """Tell the platform how much is about to be loaded, if the model is here."""
    with contextlib.suppress(ThalwegError, OSError, ValueError):  # `build` says what is wrong
        if not Path(args.model).exists() or registry.foreign(described.read(args, Path(args.model))):
            return  # a module's spec would load a framework, before the platform has loaded it as it wants
        size = to_load(args, platform)
        if size:
            resolve.configured(args, platform).expect(size)


def build(args: EngineArgs, platform: Platform | None = None) -> Worker:
    """`args.model` is a local directory. platform: in place of the one that `args.device` names. Raises ConfigError,
    CheckpointError, UnsupportedModelError or DeviceError, in that order of cheapness: whatever can be refused without loading
    weights is refused before."""
    start = time.monotonic()
    mark("engine started")
    check_args(args)
    path = Path(args.model)
    hf = described.read(args, path)
    formats.scheme(hf, args.quantization)
    hf, spec = registry.declare(hf, path)  # refuse an unknown architecture before a framework is imported
    facts = resolve.within(read_facts(hf, path), spec)
    args = resolve.for_tail(args, spec)
    configured = functools.partial(resolve.configured, args)
    platform = configured(platform) if platform else discovery.choose(args.device, configured)
    resolve.check_values(args, platform)
    if platform.runs_models:
        args = _cached(args, hf, spec)
    device = platform.open(resolve.place(args, platform))
    job = _Job(args, path, hf, facts, spec, platform, device, platform.defaults(facts, device.info))
    try:
        if args.enforce_eager and device.pads:
            raise ConfigError(f"enforce_eager: on {platform.name} every step is compiled; leave the flag out")
        worker = _build_model(job) if platform.runs_models else _build_without_model(job)
        problems = platform.validate(worker.config)
        if problems:
            raise ConfigError(*(f"{p.field}: {p.message}" for p in problems))
    except BaseException:
        device.close()
        raise
    mark("engine built")
    worker.load_seconds = time.monotonic() - start
    return worker


def _cached(args: EngineArgs, hf: dict[str, Any], spec: ModelSpec) -> EngineArgs:
    said = described.cached(args, hf, spec)
    if said.kv_cache_dtype != args.kv_cache_dtype:
        logger.info(
            "keys and values are cached in %s, as the checkpoint says; --kv-cache-dtype with the model's own type (bfloat16, "
            "float16) keeps them as they are", said.kv_cache_dtype,
        )  # fmt: skip
    return said


def _build_model(job: _Job) -> Worker:
    from thalweg.models.build import build as build_model
    from thalweg.models.build import gains
    from thalweg.models.load import load_params
    from thalweg.models.step import make_state, make_step

    args, device = job.args, job.device
    dtype = resolve.dtype(args, job.facts, device.info, job.defaults)
    length = resolve.max_len(args, job.facts)
    for said in dict.fromkeys(describe_stretch(rope, length) for rope in job.spec.ropes):
        if said:
            logger.info("positions: %s", said)
    schedule = resolve.scheduler(args, job.defaults, length)
    invariant = _invariant(job)
    binder = Binder(
        device.kernels, strict=args.strict_kernels, batch_invariant=invariant, bodies_invariant=device.bodies_invariant
    )
    if args.load_format in FASTER_READERS:
        logger.info("load_format: %s reads the same files as safetensors, and is served by that reader", args.load_format)
    if args.quantization in SPELLINGS:
        logger.info("quantization: %s is served as %s", args.quantization, online.meant(args.quantization))
    method = online.chosen(args.quantization, functools.partial(gains, binder, dtype, job.facts.hidden))
    block_tokens = resolve.block_tokens(args, job.defaults)
    background = device.background() if job.spec.vision is not None or job.spec.hearing is not None else None
    model = build_model(
        job.hf, binder=binder, attention=_attention(job, device.attention), comm=device.comm, dtype=dtype, max_len=length,
        block_tokens=block_tokens, quantization=method, kv_dtype=args.kv_dtype,
        kv_skip=args.kv_cache_dtype_skip_layers,
        state_tokens=resolve.state_tokens(args, job.spec, block_tokens),
        background=None if background is None else (binder.of(background.kernels), _attention(job, background.attention)),
    )  # fmt: skip
    # Everything a user can have got wrong about sizes is refused before a weight is read.
    room = _room(job, dtype, schedule, length)
    schedule = resolve.with_states(args, model.groups, room, schedule)
    size = resolve.cache_size(args, model.groups, room, length, schedule.max_seqs)
    step = make_step(model, binder, logprobs_mode=args.logprobs_mode)
    before = device.used()
    with ahead.reading(args):
        params = load_params(
            model, job.path, device, load_format=args.load_format, seed=args.seed, progress=args.use_tqdm_on_load,
            ranks=range(device.comm.size),
        )  # fmt: skip
    if isinstance(job.spec, ForeignSpec) and args.load_format != "dummy":
        model.check(params)
    mark("weights loaded")
    _tell_memory(job, device.used() - before)
    slots = schedule.max_seqs + 1
    state = StateBox(make_state(model, device, blocks=size.blocks, slots=slots, max_len=size.max_len))
    limits = rehearsal.limits(model.groups, schedule.token_budget, schedule.max_seqs, size.max_len)
    buckets = job.platform.buckets(job.defaults, limits)
    runner = Runner(
        lambda shape, features: device.compile(step, params, state, shape, features),
        model.attention,
        buckets,
        job.defaults.unpadded,
        device.widen,
        rehearsal.tables(model.groups, slots, size.max_len, device.keeps_tables),
    )
    _prepare(job, runner, buckets, limits, model.vocab)
    config = _config(job, dtype, size, model.groups, schedule, model.vocab, method)
    lines = [str(c) for c in binder.bindings]
    populate = functools.partial(_populate, device, model, state)
    return Worker(config, runner.launch, lines, device, 0.0, _encoder(job, model, params, background), populate)


def _populate(device: Device, model: Model, state: StateBox, reached: Sequence[int]) -> bool:
    """See Worker.populate."""
    ahead = [range(n, n + max(16, POPULATED // g.block_tokens)) for n, g in zip(reached, model.groups, strict=True)]
    caches = zip(state.value["kv"], model.layer_group, strict=True)
    return device.populate([(part, ahead[g]) for kv, g in caches for part in (kv if isinstance(kv, tuple) else (kv,))])


def _encoder(job: _Job, model: Model, params: Any, background: Background | None) -> Encoder | None:
    """What makes vectors of images and sounds, where the model takes any and its files say how."""
    from thalweg.engine.worker import encoder as encoders

    eye = processor(job.hf, job.path) if model.vision is not None else None
    ear = listener(job.hf, job.path) if model.hearing is not None else None
    if eye is not None and not model.looks_ahead:
        logger.warning("images are refused: no attention of this device lets an image's tokens see each other")
        eye = None
    ways = {}
    if eye is not None:
        ways["image"] = encoders.seeing(model.vision, params["vision"], eye)
    if ear is not None:
        ways["audio"] = encoders.hearing(model.hearing, params["hearing"], ear)
    return encoders.Encoder(job.device, background, ways) if ways else None


def _prepare(job: _Job, runner: Runner, buckets: Sequence[StepShape], limits: Limits, vocab: int) -> None:
    """Make what the first requests would wait for. The client hears that the engine is ready only after this, and from then on
    counts the seconds in which no step is finished."""
    device, most = job.device, job.args.max_logprobs
    before: list[Callable[[], StepBatch]] = []
    after: list[Callable[[], StepBatch]] = []
    if device.warms:
        most = EngineArgs.max_logprobs if most < 0 else most  # no limit: what is usual
        before, after = (make(limits, runner.tables, vocab, min(most, vocab)) for make in (prompts, decodes))
    steps = runner.rehearsals(device.prepared(buckets), before, after)
    if not steps:
        return
    start, free = time.monotonic(), device.memory().free if device.warms else 0
    device.rehearse(steps)
    if device.warms:
        device.synchronize()
        _tell_prepared(job, len(steps), time.monotonic() - start, free - device.memory().free)
    mark("steps prepared")


def _tell_prepared(job: _Job, steps: int, seconds: float, taken: int) -> None:
    """taken: bytes of device memory that went meanwhile, beside weights and cache: what the workspace was planned for."""
    logger.info("prepared: %d steps in %.1f s, which took %s of device memory", steps, seconds, gib(max(0, taken)))
    if job.platform.describe() is None:
        return
    planned = plan(job.args).workspace
    if taken > planned:
        logger.warning(
            "preparing took %s of device memory and %s were planned: if memory runs out later, lower "
            "--gpu-memory-utilization (%g) or --max-num-seqs",
            gib(taken), gib(planned), job.args.gpu_memory_utilization,
        )  # fmt: skip


def _attention(job: _Job, found: Sequence[AttentionBackend]) -> Sequence[AttentionBackend]:
    """This attention, or the part of it that the user named. ConfigError."""
    name = job.args.attention_backend
    try:
        return found if name == "auto" else named_attention(found, name)
    except ValueError as e:
        raise ConfigError(f"attention_backend: {e}") from None


def _invariant(job: _Job) -> bool:
    """Whether only batch-invariant kernels are bound. Says so in the log; ConfigError where that was insisted on in vain."""
    wanted, can = job.args.batch_invariant, job.device.bodies_invariant
    why = (
        f"on {job.platform.name} a compiler orders sums by the shape of a step, so equal requests may differ in their last bits"
    )
    if wanted and not can:
        raise ConfigError(f"batch_invariant: {why}: leave the flag out")
    if isinstance(job.spec, ForeignSpec):
        logger.warning("%s: %s", job.facts.architecture, UNRELIABLE)
        why = "transformers' own module computes the model"
    elif wanted is False:
        why = "not wanted"
    logger.info("batch invariance: %s", "yes: same seed, same text" if can and wanted is not False else f"no: {why}")
    return can and wanted is not False


def _tell_memory(job: _Job, loaded: int) -> None:
    """One line: what was planned, and what the weights really take."""
    if job.platform.describe() is None or not logger.isEnabledFor(logging.INFO):
        return
    p = plan(job.args)
    logger.info(
        "memory: weights %s planned, %s measured; KV cache %s for %d tokens; workspace %s estimated; %s of %s in all",
        gib(p.weights), gib(loaded), gib(p.kv_cache), p.tokens, gib(p.workspace), gib(p.total), gib(p.device_bytes),
    )  # fmt: skip


def _build_without_model(job: _Job) -> Worker:
    """See sizes.stand_in_group."""
    if job.spec.pooling is not None:
        raise ConfigError(f"device: platform {job.platform.name!r} runs no model, so it has no vectors to give")
    f, args = job.facts, job.args
    length = resolve.max_len(args, f)
    schedule = resolve.scheduler(args, job.defaults, length)
    bt = resolve.block_tokens(args, job.defaults)
    group = sizes.stand_in_group(job.spec, bt)
    memory = resolve.cache_bytes(args, job.defaults, job.device.memory(), 0, history(schedule, length))
    size = resolve.cache_size(args, (group,), memory, length, schedule.max_seqs)
    config = _config(job, "none", size, (group,), schedule, f.vocab)
    box = StateBox(
        {
            "kv": [job.device.alloc_kv(KVLayout((bt,), "int64", "rolling-hash"), size.blocks[0])],
            "history": job.device.alloc((schedule.max_seqs + 1, size.max_len + 1), "int32"),
        }
    )
    runner = Runner(lambda shape, features: job.device.compile(_no_step, {"vocab": f.vocab}, box, shape, features), (), ())
    return Worker(config, runner.launch, ["no model: this platform computes none"], job.device, 0.0)


def _pooling(spec: ModelSpec) -> PoolingConfig | None:
    tail = spec.pooling
    if tail is None:
        return None
    return PoolingConfig(
        task="embed" if tail.classes is None else "classify", mode=tail.mode, activation=tail.activation,
        activate=tail.activate, size=spec.result,
        labels=() if tail.classes is None else tail.classes.labels, dimensions=tail.dimensions, types=spec.types,
        form=tail.form, prompts=dict(tail.prompts), caches=resolve.in_chunks(spec), each=tail.each,
        step_tag=tail.step_tag, columns=tail.columns,
    )  # fmt: skip


def _sound(job: _Job) -> SoundConfig | None:
    heard = job.spec.sound
    if heard is None:
        return None
    said = {**job.hf, **generation_defaults(job.path)}
    return SoundConfig(
        bins=heard.bins, frames=heard.frames, suppress=_tokens(said, "suppress_tokens", job.facts.vocab),
        begin_suppress=_tokens(said, "begin_suppress_tokens", job.facts.vocab),
        multilingual=bool(said.get("is_multilingual", job.facts.vocab != ENGLISH_VOCAB)),
    )  # fmt: skip


def _tokens(said: dict[str, Any], key: str, vocab: int) -> tuple[int, ...]:
    """A list of token ids. A negative one stands for a list that another implementation has, and says nothing here."""
    ids = said.get(key) or []
    if not isinstance(ids, list) or not all(isinstance(i, int) and i < vocab for i in ids):
        raise CheckpointError(f"generation_config.json: {key}: must be a list of token ids below {vocab}")
    return tuple(sorted({i for i in ids if i >= 0}))


def _no_step(params: Any, state: Any, batch: StepBatch) -> Any:
    raise RuntimeError("a platform with runs_models = False was asked to run a model's step")


def _room(job: _Job, dtype: str, schedule: SchedulerConfig, length: int) -> int:
    """Bytes for the KV cache, known before a weight is read."""
    spec, ranks = job.spec, job.device.comm.size
    steps = step_sizes(spec, schedule, length, dtype, ranks, job.args.batch_invariant is not False)
    others = job.platform.workspace(steps) + history(schedule, length, spec) + encoded(spec)
    use = formats.scheme(job.hf, job.args.quantization)
    weights = sizes.weight_bytes(spec, dtype, length, ranks, use, job.platform.packs, job.platform.dense_share)
    return resolve.cache_bytes(job.args, job.defaults, job.device.memory(), weights, others)


def _config(
    job: _Job,
    dtype: str,
    size: resolve.CacheSize,
    groups: tuple[KVSpec, ...],
    schedule: SchedulerConfig,
    vocab: int,
    method: str | None = None,
) -> EngineConfig:
    args, f = job.args, job.facts
    return EngineConfig(
        model=ModelConfig(
            path=str(job.path),
            architecture=f.architecture,
            dtype=dtype,
            max_len=size.max_len,
            vocab=vocab,
            seed=args.seed,
            load_format=args.load_format,
            quantization=method,
            logprobs_mode=args.logprobs_mode,
            max_logprobs=args.max_logprobs,
            hidden=job.spec.hidden if job.platform.runs_models else 0,
            hf_overrides=args.hf_overrides or {},
            pooling=_pooling(job.spec),
            sound=_sound(job),
        ),
        device=DeviceConfig(
            platform=job.platform.name,
            name=job.device.info.name,
            strict_kernels=args.strict_kernels,
            threads=args.threads,
        ),
        cache=CacheConfig(
            block_tokens=min(g.block_tokens for g in groups),
            groups=groups,
            blocks=size.blocks,
            prefix_caching=args.enable_prefix_caching,
            prefix_hash=args.prefix_caching_hash_algo,
            dtype=args.kv_dtype,
            tables_kept=job.device.keeps_tables,
        ),
        scheduler=schedule,
    )
