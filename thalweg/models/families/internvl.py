"""InternVL in both formats, Qianfan-OCR, H2OVL and NVLM-D: a tiled vision encoder, and a decoder of several families."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import BESIDE, Config, flag, integer, text
from thalweg.errors import UnsupportedModelError
from thalweg.models.families.multimodal import of_kind, seeing
from thalweg.models.families.towers.common import outer_config, vision_config
from thalweg.models.families.towers.internvl import internvl as tower
from thalweg.models.spec import ModelSpec, VisionSpec

PROJECTOR = "model.multi_modal_projector."
OUTSIDE = (
    ("vision_model.", "model.vision_tower."), ("mlp1.0.", f"{PROJECTOR}layer_norm."), ("mlp1.1.", f"{PROJECTOR}linear_1."),
    ("mlp1.3.", f"{PROJECTOR}linear_2."), ("language_model.output.", "output."),
    ("language_model.model.encoder.layers.", "model.layers."),  # as transformers writes Qianfan-OCR
)  # fmt: skip
INSIDE = (
    ("vision_tower.encoder.layers.", "vision_tower.encoder.layer."), (".ls1", ".lambda_1"), (".ls2", ".lambda_2"),
    (".attn.", ".attention."), (".attention.proj.", ".attention.projection_layer."), (".norm1.", ".layernorm_before."),
    (".norm2.", ".layernorm_after."), (".embeddings.class_embedding", ".embeddings.cls_token"),
    (".embeddings.position_embedding", ".embeddings.position_embeddings"),
    (".embeddings.patch_embedding.", ".embeddings.patch_embeddings.projection."),
)  # fmt: skip
"""Names in InternVL's format."""


def internvl(config: Config) -> ModelSpec:
    return seeing(of_kind({"tie_word_embeddings": True, **config}, "qwen2"), config, tower)


def qianfan_ocr(config: Config) -> ModelSpec:
    return seeing(
        of_kind(config, "qwen3"), config, lambda c: fused_tower(c, {"attention_bias": True}), replace=OUTSIDE, inside=INSIDE
    )


def internvl_chat(config: Config) -> ModelSpec:
    """`llm_config` is the text part. Vectors are joined as the second version of that step has it."""
    around = outer_config(config)
    section = vision_config(config) if isinstance(around.get("vision_config"), dict) else {}
    if text(around, "ps_version", "v2") != "v2":
        raise UnsupportedModelError("config.json: ps_version: this version only supports v2")
    own = {
        "attention_bias": flag(section, "qkv_bias", False), "use_qk_norm": flag(section, "qk_normalization", True),
        "norm_type": text(section, "norm_type", "rms_norm"),
    }  # fmt: skip
    layer = integer(around, "select_layer", low=-1000, high=1000, default=-1)
    outer = {**around, "vision_feature_layer": layer, "projector_hidden_act": "gelu"}
    return seeing(
        of_kind(config, "qwen2"), {**config, BESIDE: outer}, lambda c: fused_tower(c, own), replace=OUTSIDE, inside=INSIDE
    )


def nvlm_d(config: Config) -> ModelSpec:
    """NVLM-D: the projector has no biases, and the decoder's inner size."""
    spec = internvl_chat(config)
    if spec.vision is None:
        return spec
    assert isinstance(spec.vision, VisionSpec)
    inner, (first, last) = integer(config, "intermediate_size"), spec.vision.projector.steps
    steps = (replace(first, outputs=inner, bias=False), replace(last, inputs=inner, bias=False))
    return replace(spec, vision=replace(spec.vision, projector=replace(spec.vision.projector, steps=steps)))


def fused_tower(config: Config, own: Config) -> tuple[VisionSpec, tuple[str, ...]]:
    """With q, k and v in one tensor. own: defaults of transformers' keys, from the keys of InternVL's format."""
    around = outer_config(config)
    result, unread = tower({**config, BESIDE: {**around, "vision_config": {**own, **vision_config(config)}}})
    layers = tuple(replace(each, mixer=replace(each.mixer, fused="qkv")) for each in result.layers)  # type: ignore[type-var]
    return replace(result, layers=layers), unread
