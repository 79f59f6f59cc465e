"""Last stage: the configuration that every process of the engine gets."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.config import folder, generation_defaults
from thalweg.config import (
    CacheConfig,
    DeviceConfig,
    EngineConfig,
    ModelConfig,
    PoolingConfig,
    SchedulerConfig,
    SourceConfig,
    SpeechConfig,
)
from thalweg.engine.planning import resolve
from thalweg.engine.worker.stages.open import BuildInputs
from thalweg.errors import CheckpointError
from thalweg.hal.kv import KVSpec
from thalweg.media.audio_processors.transcribers import TRANSCRIBERS
from thalweg.media.source_features import check_settings
from thalweg.models.spec import ModelSpec, PatchSource, SwinSource


def engine_config(
    inputs: BuildInputs,
    *,
    dtype: str,
    size: resolve.CacheSize,
    groups: tuple[KVSpec, ...],
    schedule: SchedulerConfig,
    vocab: int,
    quantization: str | None = None,
) -> EngineConfig:
    """quantization: the method that rounds dense weights while they are loaded."""
    args, f = inputs.args, inputs.facts
    return EngineConfig(
        model=ModelConfig(
            path=str(inputs.path),
            architecture=f.architecture,
            dtype=dtype,
            max_len=size.max_len,
            vocab=vocab,
            seed=args.seed,
            load_format=args.load_format,
            quantization=quantization,
            logprobs_mode=args.logprobs_mode,
            max_logprobs=args.max_logprobs,
            hidden=inputs.spec.hidden if inputs.platform.runs_models else 0,
            hf_overrides=args.hf_overrides or {},
            pooling=_pooling(inputs.spec),
            speech=_speech(inputs),
            speaks=inputs.spec.spoken_text is not None,
            returns_states=inputs.spec.states_before > 0,
            speech_end=_speech_end(inputs.spec),
            transcribes=inputs.spec.listens and (inputs.spec.overlays_added or f.architecture in TRANSCRIBERS),
            source=_source(inputs),
            source_columns=0 if inputs.spec.tile_source is None else inputs.spec.tile_source.columns,
            source_required=isinstance(inputs.spec.tile_source, PatchSource | SwinSource),
            prefix_lm=inputs.spec.prefix_lm,
            prompt_ids=dict(inputs.spec.prompt_ids),
        ),
        device=DeviceConfig(
            platform=inputs.platform.name,
            name=inputs.device.info.name,
            strict_kernels=args.strict_kernels,
            threads=args.threads,
        ),
        cache=CacheConfig(
            block_tokens=min(g.block_tokens for g in groups),
            groups=groups,
            blocks=size.blocks,
            prefix_caching=args.enable_prefix_caching,
            prefix_hash=args.prefix_caching_hash_algo,
            max_retention=args.max_cache_retention,
            dtype=args.kv_dtype,
            tables_kept=inputs.device.keeps_tables,
        ),
        scheduler=schedule,
        engines=args.local_engines,
        first_engine=args.first_engine,
    )


def _pooling(spec: ModelSpec) -> PoolingConfig | None:
    tail = spec.pooling
    if tail is None:
        return None
    task = "embed" if tail.classes is None else "classify"
    task = "transcription" if tail.transcribes else "speech" if tail.speaks else task
    return PoolingConfig(
        task=task, mode=tail.mode, activation=tail.activation,
        activate=tail.activate, size=spec.result,
        labels=() if tail.classes is None else tail.classes.labels, dimensions=tail.dimensions, types=spec.types,
        form=tail.form, prompts=dict(tail.prompts), caches=resolve.in_chunks(spec), each=tail.each,
        step_tag=tail.step_tag, columns=tail.columns, encoded=tail.encoded, fills=tail.fills,
    )  # fmt: skip


def _speech_end(spec: ModelSpec) -> int:
    if spec.spoken_text is None:
        return -1
    return spec.vocab if spec.code_rows is None else spec.code_rows.codes


def _speech(inputs: BuildInputs) -> SpeechConfig | None:
    spec = inputs.spec.speech
    if spec is None:
        return None
    check_settings(spec.form, folder(inputs.path))
    generation = {**inputs.hf, **generation_defaults(inputs.path)}
    return SpeechConfig(
        bins=spec.bins, frames=spec.frames, suppress=_token_ids(generation, "suppress_tokens", inputs.facts.vocab),
        begin_suppress=_token_ids(generation, "begin_suppress_tokens", inputs.facts.vocab),
        multilingual=bool(generation.get("is_multilingual", spec.multilingual)),
        heads=inputs.spec.aligned_heads,
        form=spec.form,
        start=_start(generation, inputs.facts.vocab) if spec.starts else (),
    )  # fmt: skip


def _start(generation: dict[str, Any], vocab: int) -> tuple[int, ...]:
    """The first token of transcripts, and the one that the file forces after it."""
    defaults = {"decoder_start_token_id": generation.get("decoder_start_token_id", 1)}
    if (forced := generation.get("forced_bos_token_id")) is not None:
        defaults["forced_bos_token_id"] = forced
    return tuple(i for key, id in defaults.items() for i in _token_ids({key: [id]}, key, vocab))


def _source(inputs: BuildInputs) -> SourceConfig | None:
    spec, tail = inputs.spec.text, inputs.spec.pooling
    if spec is None:
        return None
    if tail is not None:
        assert tail.source is not None
        first = tail.source.start
        return SourceConfig(tokens=spec.sources, start=() if first is None else (first,), end=tail.source.end)
    defaults = {k: v for k, v in generation_defaults(inputs.path).items() if v is not None}
    generation = {**inputs.hf, **defaults}
    vocab, start = inputs.facts.vocab, ("decoder_start_token_id", "bos_token_id")
    first = next((generation[key] for key in start if generation.get(key) is not None), None)
    if first is None:
        raise CheckpointError(f"generation_config.json: {start[0]}: missing, and this model's answers start with it")
    forced = generation.get("forced_bos_token_id")
    bad = generation.get("bad_words_ids") or []
    if not isinstance(bad, list) or not all(isinstance(word, list) for word in bad):
        raise CheckpointError("generation_config.json: bad_words_ids: must be a list of lists of token ids")
    single = {"bad_words_ids": [word[0] for word in bad if len(word) == 1]}
    return SourceConfig(
        tokens=spec.sources, start=_token_ids({start[0]: [first]}, start[0], vocab),
        forced=() if forced is None else _token_ids({"forced_bos_token_id": [forced]}, "forced_bos_token_id", vocab),
        suppress=_token_ids(single, "bad_words_ids", vocab), placeholder=-1 if spec.vision is None else spec.vision.token,
    )  # fmt: skip


def _token_ids(generation: dict[str, Any], key: str, vocab: int) -> tuple[int, ...]:
    """A list of token ids. Negative ids mean a built-in list of another implementation, and are skipped."""
    ids = generation.get(key) or []
    if not isinstance(ids, list) or not all(isinstance(i, int) and i < vocab for i in ids):
        raise CheckpointError(f"generation_config.json: {key}: must be a list of token ids below {vocab}")
    return tuple(sorted({i for i in ids if i >= 0}))
