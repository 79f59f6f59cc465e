"""POINTS 1.5 and POINTS-Reader: Qwen2-VL's vision encoder with a merger outside it, Qwen2 decoder. Positions have one axis."""

from __future__ import annotations

from thalweg.checkpoint.config import Config
from thalweg.models.families.multimodal import is_blind, of_kind, seeing
from thalweg.models.families.towers.qwen_vl import ROOT, qwen2_vl
from thalweg.models.spec import ModelSpec

UNREAD = "vision_encoder.merger."
"""The merger of the encoder's class, which files may contain. The model has its own."""
NAMES = (
    (UNREAD, UNREAD), ("vision_encoder.", ROOT), ("vision_projector.", f"{ROOT}merger."), ("llm.model.", "model."),
    ("llm.lm_head.", "lm_head."),
)  # fmt: skip


def points_1_5(config: Config) -> ModelSpec:
    unread = (UNREAD, *((ROOT,) if is_blind(config) else ()))
    return seeing(of_kind(config, "qwen2", ("qwen2",)), config, qwen2_vl, replace=NAMES, skip=unread)
