"""jina-reranker-m0: Qwen2-VL scores pairs of texts and images from the state of a last token."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config
from thalweg.models.families.common import classes
from thalweg.models.families.multimodal import qwen2_vl
from thalweg.models.families.tails import attach_tail
from thalweg.models.spec import ModelSpec

SHIFT = 2.65
"""Subtracted from the score before its sigmoid. No file has this number."""


def jina_vl(config: Config) -> ModelSpec:
    one = {**config, "id2label": {"0": "LABEL_0"}}
    tail = classes(one, mode="last", dense="score.0", act="relu", out="score.2", shift=SHIFT)
    return attach_tail(qwen2_vl(config), replace(tail, form="jina-reranker-m0"))
