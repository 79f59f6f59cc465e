"""The parts of a client that exist before the engine does: the model's directory, tokenizer, template, defaults."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from thalweg.checkpoint import config as hf
from thalweg.checkpoint import hub
from thalweg.checkpoint.talker import has_talker
from thalweg.checkpoint.tokenizer import load_tokenizer
from thalweg.config import EngineArgs, EngineConfig, check_args
from thalweg.engine.client.grammars import StructuredOutputs
from thalweg.engine.client.media import MediaPreprocessor
from thalweg.engine.client.thinking import ReasoningMarkers, marks
from thalweg.engine.control.store.connect import check_store
from thalweg.engine.planning import checkpoint_config
from thalweg.engine.planning.drafter_files import resolve_drafter, split_speculator
from thalweg.errors import CheckpointError, ConfigError, RequestError
from thalweg.hal.platform import ModelInfo
from thalweg.media.gate import MediaConnector
from thalweg.media.kinds import load_kinds, load_processors
from thalweg.media.kinds.base import MediaSettings
from thalweg.media.speakers import load_speaker
from thalweg.media.speakers.base import Speaker
from thalweg.params import OF_MODEL, SamplingParams
from thalweg.template.chat import Chat
from thalweg.template.select import Templates, complete_templates
from thalweg.text.grammar import vocabulary
from thalweg.text.tokenizer import Tokenizer, check_vocab

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Frontend:
    """args: the user's, with `model` made a local directory."""

    args: EngineArgs
    path: Path
    tokenizer: Tokenizer | None
    chat: Chat | None
    """None without a tokenizer. Its `source` is None where the model has no template."""
    eos_ids: tuple[int, ...]
    default_sampling: dict[str, Any]
    """SamplingParams fields a request starts from."""
    media: MediaPreprocessor | None
    """The preprocessor of media. None: a text-only model."""
    speaker: Speaker | None
    """Reads texts to be spoken. None: the model does not speak."""
    marks: ReasoningMarkers | None
    """The tokens around the model's reasoning. None: unknown."""
    names: list[str]
    """Names that clients may call the model. The first is shown."""

    def sampling(self, **fields: Any) -> SamplingParams:
        """Parameters from the fields a caller gave (None = not given) over the model's defaults."""
        given = {k: v for k, v in fields.items() if v is not None}
        return SamplingParams(**{**self.default_sampling, **given})

    def structured_outputs(self, config: EngineConfig) -> StructuredOutputs | None:
        """The validator of grammars. None without a tokenizer, or for a pooling model."""
        tokenizer = self.tokenizer
        if tokenizer is None or config.model.pooling is not None:
            return None
        return StructuredOutputs(
            lambda: vocabulary(tokenizer, config.model.vocab, self.eos_ids), self.args.structured_outputs_config
        )

    def talker_args(self) -> EngineArgs | None:
        """The arguments of the engine that speaks the answers. None: there is none."""
        from thalweg.engine.planning.talker import talker_args

        return talker_args(self.args) if self.args.enable_talker else None


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A model directory with a readable configuration."""

    args: EngineArgs
    """The user's arguments, with that directory as `model`."""
    given: EngineArgs
    path: Path
    config: dict[str, Any]
    facts: ModelInfo


def locate(args: EngineArgs) -> ResolvedModel:
    """CheckpointError or ConfigError, naming file or field, before any process starts to load."""
    check_args(args)
    check_store(args)
    path = checkpoint_config.find(args)
    chosen = split_speculator(args, path)
    if chosen is not args:
        path = checkpoint_config.find(chosen)
        split_speculator(chosen, path)  # a drafter whose target is a drafter, such as itself, is refused
    config = checkpoint_config.read(chosen, path)
    if args.enable_talker and not has_talker(config):
        raise ConfigError("enable_talker: config.json describes no talker, the part that speaks answers; omit it")
    resolved = msgspec.structs.replace(resolve_drafter(chosen), model=str(path))
    check_args(resolved)
    return ResolvedModel(resolved, args, path, config, hf.facts(config, path))


def load_frontend(located: ResolvedModel) -> Frontend:
    """Loads the tokenizer. CheckpointError or ConfigError, naming file or field."""
    args, path = located.given, located.path
    tokenizer, taken, speaker = None, dict[str, Any](), load_speaker(located.config, located.path)
    if not args.skip_tokenizer_init:
        where = path
        if args.tokenizer and Path(args.tokenizer).is_dir():  # may hold a tokenizer and nothing else
            where = Path(args.tokenizer)
        elif args.tokenizer:
            where = hub.resolve_model(
                args.tokenizer, revision=args.tokenizer_revision, download_dir=args.download_dir, token=args.hf_token
            )
        mode = "hf" if args.tokenizer_mode == "slow" else args.tokenizer_mode
        own = 0 if speaker is None else speaker.text_rows
        rows = own or located.facts.vocab + located.facts.prompt_tokens
        tokenizer = load_tokenizer(where, mode, rows)
        check_vocab(tokenizer, rows)
        taken = load_processors(located.config, located.path)
        for each in taken.values():
            tokenizer = tokenizer.marking(each.marker).marking(getattr(each, "numbered", "").partition("{}")[0])
    generation = _generation_config(args, path)
    templates = {} if tokenizer is None else complete_templates(tokenizer.chat_templates, located.facts.architecture)
    return Frontend(
        args=located.args,
        path=path,
        tokenizer=tokenizer,
        chat=Chat(tokenizer, Templates(templates), args.renderer_num_workers) if tokenizer else None,
        eos_ids=hf.eos_ids(path, located.config, tokenizer, generation),
        default_sampling=_default_sampling(path, generation),
        media=_media(located, tokenizer, taken),
        speaker=speaker,
        marks=marks(args.reasoning_config, tokenizer),
        names=list(args.served_model_name or [args.model]),
    )


def _media(located: ResolvedModel, tokenizer: Tokenizer | None, taken: Mapping[str, Any]) -> MediaPreprocessor | None:
    """taken: processors by kind of media."""
    args = located.args
    gate = MediaConnector(args.allowed_media_domains or (), args.allowed_local_media_path)
    if tokenizer is None:
        return None
    settable = [kind for kind in load_kinds().values() if kind.settable]
    if args.mm_processor_kwargs and not any(kind.name in taken for kind in settable):
        words = " and no ".join(kind.plural for kind in settable)
        raise ConfigError(f"mm_processor_kwargs: this model supports no {words}; omit it")
    if not taken:
        return None
    per_prompt = args.limit_mm_per_prompt or {}
    limits = {kind: limit["count"] if isinstance(limit, dict) else limit for kind, limit in per_prompt.items()}
    kept = int(args.mm_processor_cache_gb * (1 << 30))
    settings = MediaSettings(limits, kept, args.media_io_kwargs or {}, args.disable_chunked_mm_input)
    media = MediaPreprocessor(taken, tokenizer, gate, settings)
    if media.unsafe:
        kinds = " and ".join(media.unsafe)
        logger.warning("%s are refused: the tokenizer does not say that the model's token for them is a special token", kinds)
        return None
    return media


def _generation_config(args: EngineArgs, path: Path) -> dict[str, Any]:
    """--override-generation-config over generation_config.json (or the one that --generation-config names) over nothing."""
    found: dict[str, Any] = {}
    if args.generation_config not in ("thalweg", "vllm"):
        where = path if args.generation_config == "auto" else Path(args.generation_config)
        if not where.exists():
            raise ConfigError(f"generation_config: {args.generation_config!r} is neither auto, thalweg nor a directory")
        found = hf.generation_defaults(where)
    return {**found, **(args.override_generation_config or {})}


def _default_sampling(path: Path, found: Mapping[str, Any]) -> dict[str, Any]:
    """The defaults of requests from `found`, a generation config."""
    fields = {k: found[k] for k in OF_MODEL if found.get(k) is not None}
    if found.get("max_new_tokens") is not None:
        fields["max_tokens"] = found["max_new_tokens"]
    try:
        SamplingParams(**fields)
    except RequestError as e:
        raise CheckpointError(f"generation config of {path.name}: {e}") from None
    if fields:
        logger.info("sampling defaults of the model: %s", json.dumps(fields))
    return fields
