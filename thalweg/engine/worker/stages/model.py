"""Second stage: the model on the device's kernels, its weights, and the executables of its encoders."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec

from thalweg.checkpoint import ahead
from thalweg.config import SchedulerConfig
from thalweg.drafters import load_drafter
from thalweg.engine.planning import resolve
from thalweg.engine.planning.memory import gib, plan
from thalweg.engine.worker.stages.open import BuildInputs
from thalweg.errors import ConfigError
from thalweg.hal.attention import AttentionBackend, named_attention, plans_on_device
from thalweg.hal.comm import SOLO, Mesh
from thalweg.hal.device import Background
from thalweg.hal.kv import KVSpec
from thalweg.hal.op import Binder
from thalweg.hal.step import Params
from thalweg.host.marks import mark
from thalweg.media.kinds import load_kinds
from thalweg.media.speakers import load_speaker
from thalweg.media.speakers.base import KIND as UTTERANCE
from thalweg.media.speakers.base import TEXT
from thalweg.models.fallback.spec import UNRELIABLE, TransformersSpec
from thalweg.models.spec import describe_stretch
from thalweg.options.weights import FASTER_READERS, SPELLINGS
from thalweg.plugins import import_attribute
from thalweg.quantization import online

if TYPE_CHECKING:
    from thalweg.engine.control.encodings import Encoder
    from thalweg.models.build import Model
    from thalweg.models.proposer import Proposer

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BuiltModel:
    """A model without weights, and the choices behind it."""

    model: Model
    binder: Binder
    """Its `bindings` are the kernel plan."""
    dtype: str
    max_len: int
    """Tokens, before the size of the cache is known."""
    schedule: SchedulerConfig
    quantization: str | None
    """The method that rounds dense weights while they are loaded."""
    background: Background | None
    """The queue of the encoders, where the device has a second one."""
    groups: tuple[KVSpec, ...] = ()
    """KV groups, with caches of the proposer."""
    proposer: Proposer | None = None
    """The tail of steps that propose drafts."""


def build_model(inputs: BuildInputs) -> BuiltModel:
    """Every op of the model bound to a kernel. Errors as in `thalweg.models.build`."""
    from thalweg.models.adapters import AdapterPlan
    from thalweg.models.build import build as assemble
    from thalweg.models.sizes import layout_bytes

    args, device, spec = inputs.args, inputs.device, inputs.spec
    dtype = resolve.dtype(args, inputs.facts, device.info, inputs.defaults)
    length = resolve.max_len(args, inputs.facts)
    for line in dict.fromkeys(describe_stretch(rope, length) for rope in spec.ropes):
        if line:
            logger.info("positions: %s", line)
    schedule = resolve.scheduler(args, inputs.defaults, length)
    binder = Binder(
        device.kernels, strict=args.strict_kernels, batch_invariant=_choose_invariance(inputs),
        bodies_invariant=device.bodies_invariant,
    )  # fmt: skip
    if args.load_format in FASTER_READERS:
        logger.info("load_format: %s reads the same files as safetensors, and is served by that reader", args.load_format)
    if args.quantization in SPELLINGS:
        logger.info("quantization: %s is served as %s", args.quantization, online.canonical_name(args.quantization))
    method = online.canonical_name(args.quantization)
    block_tokens = resolve.block_tokens(args, inputs.defaults)
    background = device.background() if spec.vision is not None or spec.audio is not None else None
    model = assemble(
        inputs.hf, binder=binder, attention=_select_attention(inputs, device.attention), mesh=_mesh(inputs), dtype=dtype,
        max_len=length, block_tokens=block_tokens, quantization=method, kv_dtype=args.kv_dtype,
        kv_skip=args.kv_cache_dtype_skip_layers,
        state_tokens=resolve.state_tokens(args, spec, block_tokens), spare_states=schedule.most_drafts > 0,
        adapters=AdapterPlan(args.max_loras, args.max_lora_rank, args.lora_target_modules) if args.enable_lora else None,
        stage_layers=args.pipeline_layer_partition, tp_invariant=args.tp_invariant,
        background=None if background is None
        else (binder.of(background.kernels), _select_attention(inputs, background.attention)),
    )  # fmt: skip
    if spec.prefix_lm and not model.looks_ahead:
        raise ConfigError(
            "config.json: prefix_lm: no attention of this device lets tokens of a prompt attend to later ones; "
            """--hf-overrides '{"prefix_lm": false}' serves the model with causal attention"""
        )
    proposer = _make_proposer(inputs, model, binder, schedule, length, block_tokens)
    if proposer is not None and schedule.speculation is not None and not proposer.remembers:
        speculation = msgspec.structs.replace(schedule.speculation, remembers=False)
        schedule = msgspec.structs.replace(schedule, speculation=speculation)
    groups = list(model.groups)
    for at, layout in () if proposer is None else proposer.caches:
        groups[at] = replace(groups[at], bytes_per_block=groups[at].bytes_per_block + layout_bytes(layout))
    return BuiltModel(model, binder, dtype, length, schedule, method, background, tuple(groups), proposer)


def _mesh(inputs: BuildInputs) -> Mesh:
    comm = inputs.device.comm
    return Mesh(comm, expert=comm if inputs.args.enable_expert_parallel else SOLO, stage=inputs.device.stages)


def _make_proposer(
    inputs: BuildInputs, model: Model, binder: Binder, schedule: SchedulerConfig, max_len: int, block_tokens: int
) -> Proposer | None:  # fmt: skip
    """The proposer of the user's drafter, if it has one."""
    from thalweg.models.drafts.taps import describe_places
    from thalweg.models.proposer import ProposerSetup

    config = schedule.speculation
    where = "" if config is None else load_drafter(config.method).proposer
    if config is None or not where:
        return None
    if inputs.draft is not None and len(inputs.ranks) > 1:
        raise ConfigError(
            f"speculative_config: {config.method} runs on one device of platform {inputs.platform.name!r} so far; omit "
            "tensor_parallel_size"
        )
    args = inputs.args
    result: Proposer = import_attribute(where).of(
        ProposerSetup(
            model=model, binder=binder, config=config, attention=_select_draft_attention(inputs, config.method),
            mesh=_mesh(inputs), max_len=max_len, block_tokens=block_tokens, load_format=args.load_format, seed=args.seed,
            draft=inputs.draft, ranks=inputs.ranks,
        )
    )  # fmt: skip
    if result.taps:
        logger.info("speculation: %s reads hidden states after %s", config.method, describe_places(result.taps))
    return result


def _select_draft_attention(inputs: BuildInputs, method: str) -> Sequence[AttentionBackend]:
    """The backends for layers that run after accepted tokens. ConfigError if there are layers and no backend for them."""
    found, only = _select_attention(inputs, inputs.device.attention), [b for b in inputs.device.attention if b.drafts_only]
    able = [b for b in found if plans_on_device(b)]
    if inputs.draft is not None and not able:
        raise ConfigError(
            f"speculative_config: {method}: attention {', '.join(b.name for b in found)} plans each step on the host, and "
            "draft steps follow accepted tokens, which only the device knows; use another --attention-backend, or method "
            "ngram or suffix"
        )
    return [*able, *only]


def load_weights(inputs: BuildInputs, built: BuiltModel) -> Params:
    """The parameters on the device. Raises CheckpointError."""
    from thalweg.models.load import load_params
    from thalweg.models.proposer import KEY as PROPOSER

    args, device, model = inputs.args, inputs.device, built.model
    before = device.memory_used()
    with ahead.reading(args):
        params = load_params(
            model, inputs.path, device, load_format=args.load_format, seed=args.seed, progress=args.use_tqdm_on_load,
            ranks=inputs.ranks,
        )  # fmt: skip
    if isinstance(inputs.spec, TransformersSpec) and args.load_format != "dummy":
        model.check(params)
    if built.proposer is not None and (loaded := built.proposer.load(device)):
        params = {**params, PROPOSER: loaded}
    mark("weights loaded")
    _log_memory(inputs, device.memory_used() - before)
    return params


def make_encoder(inputs: BuildInputs, built: BuiltModel, params: Params) -> Encoder | None:
    """The encoders of the kinds of media that the model supports and its files describe."""
    from thalweg.engine.worker import encoder as encoders

    model: Any = built.model
    networks: dict[str, encoders.EncoderNetwork] = {}
    found = {}
    for name, kind in load_kinds().items():
        network = getattr(model, kind.encoder)
        processor = kind.load_processor(inputs.hf, inputs.path) if network is not None else None
        if processor is not None and kind.is_bidirectional(processor) and not model.looks_ahead:
            logger.warning("%s are refused: no attention of this device lets their tokens attend to later ones", kind.plural)
            processor = None
        if processor is not None:
            shared = networks.setdefault(kind.encoder, encoders.EncoderNetwork(network, params[kind.encoder]))
            found[name] = encoders.KindEncoder(kind, processor, shared)
    if model.voice is not None and (speaker := load_speaker(inputs.hf, inputs.path)) is not None:
        network = encoders.EncoderNetwork(model.voice, params["voice"])
        found[UTTERANCE] = encoders.KindEncoder(speaker, None, network, open=True)
        if model.spoken_text is not None:
            found[TEXT] = encoders.KindEncoder(speaker, None, encoders.EncoderNetwork(model.spoken_text, params[TEXT]))
    return encoders.EncoderRunner(inputs.device, built.background, found) if found else None


def _select_attention(inputs: BuildInputs, found: Sequence[AttentionBackend]) -> Sequence[AttentionBackend]:
    """Those backends that are for models, or the one that the user named. ConfigError."""
    name, found = inputs.args.attention_backend, [b for b in found if not b.drafts_only]
    try:
        return found if name == "auto" else named_attention(found, name)
    except ValueError as e:
        raise ConfigError(f"attention_backend: {e}") from None


def _choose_invariance(inputs: BuildInputs) -> bool:
    """Whether only batch-invariant kernels are bound. Logs the choice. ConfigError where the device does not support it."""
    wanted, can = inputs.args.batch_invariant, inputs.device.bodies_invariant
    why = (
        f"on {inputs.platform.name} a compiler orders sums by the shape of a step, so equal requests may differ in their "
        "last bits"
    )
    for flag, given in (("batch_invariant", wanted), ("tp_invariant", inputs.args.tp_invariant)):
        if given and not can:
            raise ConfigError(f"{flag}: {why}: leave the flag out")
    if isinstance(inputs.spec, TransformersSpec):
        logger.warning("%s: %s", inputs.facts.architecture, UNRELIABLE)
        why = "transformers' own module computes the model"
    elif wanted is False:
        why = "not wanted"
    logger.info("batch invariance: %s", "yes: same seed, same text" if can and wanted is not False else f"no: {why}")
    return can and wanted is not False


def _log_memory(inputs: BuildInputs, loaded: int) -> None:
    """Log one line: the plan, and the bytes that the weights really use."""
    if inputs.platform.describe() is None or not logger.isEnabledFor(logging.INFO):
        return
    p = plan(inputs.args)
    logger.info(
        "memory: weights %s planned, %s measured; KV cache %s for %d tokens; workspace %s estimated; %s of %s in all",
        gib(p.weights), gib(loaded), gib(p.kv_cache), p.tokens, gib(p.workspace), gib(p.total), gib(p.device_bytes),
    )  # fmt: skip
