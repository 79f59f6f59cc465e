"""GTE (multilingual) encoder: RoPE, gated MLPs, post-norm layers. Its files call the class New."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, flag, text
from thalweg.errors import UnsupportedModelError
from thalweg.models.families.common import act, classes, mlp, pooling
from thalweg.models.families.nomic_bert import rotary_encoder
from thalweg.models.spec import ModelSpec, Names
from thalweg.models.tail import Pooling


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
        config, tail, inner, parts, base=160_000.0, bias=True, types=1, layer="encoder.layer.{}.", norm="embeddings.LayerNorm",
        names=Names(replace=tuple((p, "") for p in before), skip=(*skip, *(p + name for p in before for name in skip))),
    )  # fmt: skip
