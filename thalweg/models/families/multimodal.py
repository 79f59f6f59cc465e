"""Vision-language models: a vision encoder (`towers`) and a language model, or the language model only (unsupported encoders,
--language-model-only)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from thalweg.checkpoint.config import Config, text
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models.families import (
    gemma,
    gpt_oss,
    granite,
    internlm,
    llama,
    ministral3,
    mistral,
    mistral4,
    qwen2,
    qwen3,
    qwen3_next,
    tails,
)
from thalweg.models.families import gemma3 as gemma3_text
from thalweg.models.families.towers import qwen_vl
from thalweg.models.families.towers.clip import clip
from thalweg.models.families.towers.common import outer_config, vision_config
from thalweg.models.families.towers.gemma3 import gemma3 as gemma3_tower
from thalweg.models.families.towers.gemma3 import vectors
from thalweg.models.families.towers.pixtral import pixtral
from thalweg.models.spec import Layer, ModelSpec, MoE, Names, SamSpec, VisionSpec, VqEncoderSpec

PREFIXES = (
    ("language_model.model.", "model."), ("language_model.lm_head.", "lm_head."), ("model.language_model.", "model."),
    ("vision_tower.vision_model.", "model.vision_tower."), ("model.vision_tower.vision_model.", "model.vision_tower."),
)  # fmt: skip
"""As transformers wrote them before its version 4.52, and after it."""
INSIDE = (("mm_input_projection_weight", "mm_input_projection.weight"),)
BLIND = Names(
    replace=PREFIXES,
    skip=tuple(
        root + part for root in ("", "model.")
        for part in (
            "visual.", "vision_tower.", "multi_modal_projector.", "vision_model.", "mm_projector.", "connector.",
            "image_newline", "view_separator", "visual_embeddings_table.", "mlp_AR.", "mtp.",
        )
    ),
)  # fmt: skip
"""Names of the text part."""
TEXT: dict[str, Callable[[Config], ModelSpec]] = {
    "gemma": gemma.gemma,
    "gemma2": gemma.gemma2,
    "gpt_oss": gpt_oss.gpt_oss,
    "granite": granite.granite,
    "internlm2": internlm.internlm2,
    "llama": llama.llama,
    "ministral3": ministral3.ministral3,
    "mistral": mistral.mistral,
    "mistral4": mistral4.mistral4,
    "qwen2": qwen2.qwen2,
    "qwen3": qwen3.qwen3,
    "qwen3_moe": qwen3.qwen3_moe,
}
"""Language models that encoders stand before, by the `model_type` of the text part."""
Tower = tuple[VisionSpec | SamSpec | VqEncoderSpec, tuple[str, ...]]
"""An encoder, and prefixes of tensors that it leaves unread."""


def llava(config: Config) -> ModelSpec:
    if is_blind(config):
        return blind(of_kind(config, "llama"))
    kind = text(vision_config(config), "model_type", "clip_vision_model")
    if kind not in ("clip_vision_model", "siglip_vision_model", "pixtral"):
        raise UnsupportedModelError(f"config.json: vision_config: model_type {kind!r:.80} is not supported")
    return seeing(of_kind(config, "llama"), config, lambda c: pixtral(c, False) if kind == "pixtral" else clip(c))


def gemma3(config: Config) -> ModelSpec:
    """Tokens of an image see each other. No window is shorter than an image."""
    spec = gemma3_text.gemma3(config)
    if is_blind(config):
        return blind(spec)
    windows = [w for layer in spec.layers if (w := getattr(layer.mixer, "window", 0))]
    if min(windows, default=vectors(config)) < vectors(config):
        raise UnsupportedModelError(
            "config.json: sliding_window: shorter than an image: --language-model-only leaves those out"
        )
    layers = tuple(replace(each, mixer=replace(each.mixer, spans=True)) for each in spec.layers)  # type: ignore[type-var]
    return seeing(replace(spec, layers=layers), config, gemma3_tower)


def mistral3(config: Config) -> ModelSpec:
    """Mistral Small 3 and 4, and Ministral 3."""
    kinds = ("mistral", "ministral3", "mistral4")
    return seeing(of_kind(config, "mistral", kinds), config, lambda c: pixtral(c, True))


def native_pixtral(config: Config) -> ModelSpec:
    """As Mistral's own format has both."""
    return mistral3(config) if outer_config(config).get("model_type") == "mistral3" else llava(config)


def qwen2_vl(config: Config, **names: Any) -> ModelSpec:
    """names: as of `seeing`."""
    spec = qwen2.qwen2(one_axis(config))
    return seeing(with_axes(spec, config, mixed=False), config, qwen_vl.qwen2_vl, **names)


def qwen2_5_vl(config: Config) -> ModelSpec:
    spec = qwen2.qwen2(one_axis(config))
    return seeing(with_axes(spec, config, mixed=False), config, qwen_vl.qwen2_5_vl)


def qwen3_vl(config: Config) -> ModelSpec:
    spec = qwen3.qwen3(one_axis({"rope_theta": 500_000.0, **config}))
    return seeing(with_axes(spec, config, mixed=True), config, qwen_vl.qwen3_vl)


def qwen3_vl_classifier(config: Config) -> ModelSpec:
    """A number per class, or a reranker that is a generating checkpoint (`classifier_from_token`)."""
    return tails.classifier(qwen3_vl(config), config)


def qwen3_vl_moe(config: Config) -> ModelSpec:
    """Experts lie in one tensor for all of a layer, on its side."""
    section = {
        "rope_theta": 500_000.0,
        "num_local_experts": 60,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 1408,
        **config,
    }
    spec = qwen3.qwen3_moe(one_axis({**section, "norm_topk_prob": True}))
    layers = tuple(
        replace(each, ffn=replace(each.ffn, fused=("experts.gate_up_proj", "experts.down_proj"), turned=True))
        if isinstance(each.ffn, MoE) else each
        for each in spec.layers
    )  # fmt: skip
    return seeing(with_axes(replace(spec, layers=layers), config, mixed=True), config, qwen_vl.qwen3_vl)


def qwen3_5(config: Config) -> ModelSpec:
    return seeing(with_axes(qwen3_next.qwen3_5(config), config, mixed=True), config, qwen_vl.qwen3_5)


def qwen3_5_moe(config: Config) -> ModelSpec:
    return seeing(with_axes(qwen3_next.qwen3_5_moe(config), config, mixed=True), config, qwen_vl.qwen3_5)


def of_kind(config: Config, default: str, known: tuple[str, ...] = tuple(TEXT)) -> ModelSpec:
    kind = text(config, "model_type", default)
    if kind not in known:
        raise UnsupportedModelError(f"config.json: text_config: unknown model_type {kind!r:.80}; supported: {', '.join(known)}")
    return TEXT[kind](config)


def is_blind(config: Config) -> bool:
    """Is only the text part requested, or present?"""
    return bool(config.get("language_model_only")) or not isinstance(outer_config(config).get("vision_config"), dict)


def blind(spec: ModelSpec, *unread: str) -> ModelSpec:
    """The text part only. unread: prefixes of further tensors of other parts. The spec's own exceptions are kept."""
    skip = (*BLIND.skip, *spec.names.skip, *(root + part for part in unread for root in ("", "model.")))
    return replace(spec, names=replace(BLIND, inside=spec.names.inside, skip=skip))


def seeing(spec: ModelSpec, config: Config, tower: Callable[[Config], Tower], **names: Any) -> ModelSpec:
    """With its encoder, unless only the text part is requested. names: fields of `Names`, before those shared by all
    models."""
    before, inside, skip = (names.get(key, ()) for key in ("replace", "inside", "skip"))
    if is_blind(config):
        return replace(spec, names=Names(replace=(*before, *PREFIXES), inside=inside, skip=(*BLIND.skip, *skip)))
    vision, unread = tower(config)
    known = Names(replace=(*before, *PREFIXES), inside=(*INSIDE, *inside), skip=("mtp.", "model.mtp.", *skip, *unread))
    return replace(spec, names=known, vision=vision)


def with_axes(spec: ModelSpec, config: Config, mixed: bool, absent: list[int] | None = None) -> ModelSpec:
    """The same with positions of three axes: time, rows, columns. absent: sections, where the file names none."""
    if is_blind(config):
        return spec
    first = next(rope for _, mixer in spec.mixers if (rope := mixer.rope) is not None)
    sections = read_sections(config, first.dim, mixed, absent)

    def set_sections(layer: Layer) -> Layer:
        mixer: Any = layer.mixer
        if mixer.rope is None:
            return layer
        rope = replace(mixer.rope, sections=sections, mixed=mixed)
        return replace(layer, mixer=replace(mixer, rope=rope))

    return replace(spec, layers=tuple(set_sections(layer) for layer in spec.layers))


def read_sections(config: Config, dim: int, mixed: bool, absent: list[int] | None = None) -> tuple[int, ...]:
    """`mrope_section`: frequencies of each axis, dim / 2 together. absent: where the file names none."""
    section = config.get("rope_scaling") or config.get("rope_parameters")
    sections = section.get("mrope_section") if isinstance(section, dict) else None
    sections = absent if sections is None else sections
    if sections is None:
        sections = {True: [11, 11, 10] if dim < 128 else [24, 20, 20], False: [16, 24, 24]}[mixed]
    whole = isinstance(sections, list) and len(sections) == 3 and all(type(n) is int and n >= 0 for n in sections)
    if not whole or sum(sections) != dim // 2:
        raise CheckpointError(f"config.json: mrope_section: must be 3 numbers of {dim // 2} together, not {sections!r:.80}")
    return tuple(sections)


def one_axis(config: Config) -> Config:
    """Positions of text are the same along each of the axes that images have."""
    section = config.get("rope_scaling") or config.get("rope_parameters")
    if not isinstance(section, dict):
        return config
    kept = {k: "default" if v == "mrope" else v for k, v in section.items() if not k.startswith("mrope_")}
    return {**config, "rope_scaling": None, "rope_parameters": kept}
