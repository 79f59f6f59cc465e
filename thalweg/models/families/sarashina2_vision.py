"""Sarashina2-Vision: Qwen2-VL's vision encoder, a norm of the merged vectors, Llama decoder. Positions have one axis."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config
from thalweg.models.families.common import hidden_size
from thalweg.models.families.multimodal import is_blind, of_kind, seeing
from thalweg.models.families.towers.qwen_vl import ROOT, qwen2_vl
from thalweg.models.spec import LayerNorm, ModelSpec, VisionSpec

EPS = 1e-5
MERGER = f"{ROOT}merger."
NAMES = (("llm.model.", "model."), ("llm.lm_head.", "lm_head."), ("visual.", ROOT), ("norm.", f"{MERGER}norm."))


def sarashina2_vision(config: Config) -> ModelSpec:
    unread = (MERGER,) if is_blind(config) else ()
    return seeing(of_kind(config, "llama", ("llama",)), config, tower, replace=NAMES, skip=unread)


def tower(config: Config) -> tuple[VisionSpec, tuple[str, ...]]:
    result, unread = qwen2_vl(config)
    *steps, last = result.projector.steps
    last = replace(last, norm=LayerNorm("norm", hidden_size(config), EPS))
    return replace(result, projector=replace(result.projector, steps=(*steps, last))), unread
