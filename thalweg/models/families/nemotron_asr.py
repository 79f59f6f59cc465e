"""Nemotron ASR (Nemotron Speech Streaming and Nemotron 3.5 ASR): a causal FastConformer with a transducer."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, integer
from thalweg.media.audio_processors.parakeet import LONGEST
from thalweg.models.families.parakeet import build_transducer, encoder_config, fastconformer
from thalweg.models.families.transcribers import transcriber
from thalweg.models.spec import LanguagePrompt, ModelSpec, Names

AUTO = 101
"""The language that stands for detection."""


def nemotron_asr_streaming(config: Config) -> ModelSpec:
    return _build(config, None)


def nemotron3_5_asr(config: Config) -> ModelSpec:
    """Languages are detected: prompts with a language are not implemented."""
    languages = integer(config, "num_prompts", high=1 << 16, default=128)
    return _build(config, LanguagePrompt(
        languages=languages, language=integer(config, "default_prompt_id", low=0, high=languages - 1, default=AUTO),
        inner=integer(config, "prompt_intermediate_size", high=1 << 24, default=2048),
    ))  # fmt: skip


def _build(config: Config, prompt: LanguagePrompt | None) -> ModelSpec:
    head, section = build_transducer(config, ()), encoder_config(config)
    ahead = integer(section, "default_num_lookahead_tokens", low=0, high=1 << 16, default=13)
    before = integer(section, "sliding_window", high=1 << 16, default=71) - 1
    encoder = fastconformer(section, LONGEST, head)
    encoder = replace(
        encoder, causal=True, chunk=ahead + 1, chunks=before // (ahead + 1), prompt=prompt, frames=encoder.frames + 1
    )
    return transcriber(encoder, encoder.frames * head.per_frame, Names())
