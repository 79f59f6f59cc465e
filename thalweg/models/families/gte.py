"""GTE (multilingual) encoder: RoPE, gated MLPs, post-norm layers. Its files call the class New."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, flag, real, rope_parameters, text
from thalweg.errors import UnsupportedModelError
from thalweg.models.families.common import act, classes, head_size, mlp, pooling
from thalweg.models.families.nomic_bert import rotary_encoder
from thalweg.models.spec import ModelSpec, Names
from thalweg.models.tail import Pooling

BASE = 160_000.0
"""Of rotary positions, where config.json has none."""


def gte(config: Config) -> ModelSpec:
    return _encoder(config, pooling(config, default="cls"), skip=("pooler.", "lm_head.", "classifier."))


def gte_classifier(config: Config) -> ModelSpec:
    return _encoder(config, classes(config, dense="pooler.dense"))


def _encoder(config: Config, tail: Pooling, skip: tuple[str, ...] = ()) -> ModelSpec:
    if (
        text(config, "position_embedding_type", "rope") != "rope"
        or text(config, "layer_norm_type", "layer_norm") != "layer_norm"
    ):
        raise UnsupportedModelError("config.json: this version serves this family with rotary positions and layer norms")
    if flag(config, "logn_attention_scale", False):
        raise UnsupportedModelError("config.json: logn_attention_scale: scores that grow with a text are not supported")
    inner = mlp(config, fused="up_gate_proj", swapped=True, down_bias=True, act=act(config, default="gelu"))
    parts = ("attention", "qkv_proj", "o_proj", "attn_ln", "mlp_ln")
    before = ("new.", "gte.")
    return rotary_encoder(
        _stretch(config, head_size(config)), tail, inner, parts, base=BASE, bias=True, types=1, layer="encoder.layer.{}.",
        norm="embeddings.LayerNorm",
        names=Names(replace=tuple((p, "") for p in before), skip=(*skip, *(p + name for p in before for name in skip))),
    )  # fmt: skip


def _stretch(config: Config, dim: int) -> Config:
    """Fixed NTK scaling, `ntk` of the published files, written as linear scaling with another base: frequencies
    (base * f) ** (-2i / dim) / f ** (2 / dim) for a factor f (https://kexue.fm/archives/9706, equation 6)."""
    rope = dict(rope_parameters({"rope_theta": BASE, **config}))
    if rope["rope_type"] != "ntk":
        return config
    if rope.get("mixed_b") is not None:
        raise UnsupportedModelError("config.json: rope_scaling: mixed_b: only null is supported")
    factor = real(rope, "factor", 1.0, 1e4, where="config.json: rope_scaling")
    theta = real(rope, "rope_theta", 1.0, 1e15, default=BASE)
    linear = {"rope_type": "linear", "factor": factor ** (2 / dim), "rope_theta": theta * factor}
    return {**config, "rope_scaling": None, "rope_theta": linear["rope_theta"], "rope_parameters": linear}
