"""Qwen3-ASR and its forced aligner: the encoder of Qwen3-Omni, and Qwen3. Files have the layout of transformers, or that of the
authors (`thinker_config`)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from thalweg.checkpoint.config import Config, flag, integer
from thalweg.checkpoint.spelling import THINKER
from thalweg.models.families import multimodal
from thalweg.models.families import qwen3 as qwen3_text
from thalweg.models.families.audio_chat import RENAMED, SPEECH, UNREAD, with_audio
from thalweg.models.families.common import token_classes
from thalweg.models.families.tails import attach_tail
from thalweg.models.families.towers import audio_encoders
from thalweg.models.families.towers.common import outer_config
from thalweg.models.spec import ModelSpec, Names


def qwen3_asr(config: Config) -> ModelSpec:
    """In transformers' layout, its embedding is also the output matrix, unless the outer configuration says otherwise."""
    around = outer_config(config)
    if around.get(THINKER):
        spec = with_audio(qwen3_text.qwen3(multimodal.one_axis(config)), config, audio_encoders.qwen3)
        encoder = ("model.audio_tower.", "thinker.audio_tower.") if spec.audio is None else UNREAD
        return replace(spec, names=Names(replace=RENAMED, skip=(*SPEECH, *encoder)))
    section = {**config, "tie_word_embeddings": flag(around, "tie_word_embeddings", True)}
    return with_audio(multimodal.of_kind(section, "qwen3"), config, lambda c: audio_encoders.qwen3(c, within=False))


def qwen3_asr_aligner(config: Config) -> ModelSpec:
    """A class per token, of which those of timestamp tokens count: the number of a segment of the audio."""
    around, spec = outer_config(config), qwen3_asr(config)
    section: dict[str, Any] = {key: around[key] for key in ("id2label", "num_labels") if key in around}
    if around.get(THINKER):
        section = {"num_labels": integer(around, "classify_num", high=1 << 16, default=5000)}
        return attach_tail(replace(spec, head="score"), token_classes(section, mode="last", bias=False, out="lm_head"))
    bias = flag(around, "token_classification_bias", False)
    return attach_tail(spec, token_classes(section, mode="last", bias=bias, out="score"))
