"""The text part of models that also see: their other tensors are left out, and requests with images are refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from thalweg.checkpoint.config import Config, text
from thalweg.errors import UnsupportedModelError
from thalweg.models.families import deepseek, ministral3, mistral, mistral4, qwen2, qwen3
from thalweg.models.families import gemma3 as gemma
from thalweg.models.spec import ModelSpec, Names

SEES = Names(
    replace=(("language_model.model.", "model."), ("language_model.lm_head.", "lm_head."), ("model.language_model.", "model.")),
    skip=tuple(
        root + part for root in ("", "model.")
        for part in ("visual.", "vision_tower.", "multi_modal_projector.", "vision_model.", "mm_projector.", "mtp.")
    ),
)  # fmt: skip
"""Prefixes as transformers wrote them before its version 4.52, and after it."""


def gemma3(config: Config) -> ModelSpec:
    return _text(gemma.gemma3, config)


def kimi_k25(config: Config) -> ModelSpec:
    return _text(deepseek.deepseek_v3, config)


def mistral3(config: Config) -> ModelSpec:
    """Mistral Small 3 and 4, and Ministral 3."""
    kinds = {"mistral": mistral.mistral, "ministral3": ministral3.ministral3, "mistral4": mistral4.mistral4}
    kind = text(config, "model_type", "mistral")
    if kind not in kinds:
        raise UnsupportedModelError(f"config.json: text_config: model_type {kind!r:.80} is none of {', '.join(kinds)}")
    return _text(kinds[kind], config)


def qwen2_5_vl(config: Config) -> ModelSpec:
    return _text(qwen2.qwen2, _one_axis(config))


def qwen3_vl(config: Config) -> ModelSpec:
    return _text(qwen3.qwen3, _one_axis({"rope_theta": 500_000.0, **config}))


def _text(family: Callable[[Config], ModelSpec], config: Config) -> ModelSpec:
    return replace(family(config), names=SEES)


def _one_axis(config: Config) -> Config:
    """Positions of text are the same along each of the axes that images have."""
    said = config.get("rope_scaling") or config.get("rope_parameters")
    if not isinstance(said, dict):
        return config
    kept = {k: "default" if v == "mrope" else v for k, v in said.items() if not k.startswith("mrope_")}
    return {**config, "rope_scaling": None, "rope_parameters": kept}
