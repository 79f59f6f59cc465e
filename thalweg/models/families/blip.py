"""BLIP for captions: a vision transformer, and BERT's decoder with cross-attention (Li et al. 2022,
https://arxiv.org/abs/2201.12086)."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, flag, integer, real
from thalweg.errors import UnsupportedModelError
from thalweg.media.processors.base import edge
from thalweg.models.families.bert import HEAD
from thalweg.models.families.bert_decoder import bert_lm
from thalweg.models.families.common import hidden_size
from thalweg.models.families.multimodal import is_blind
from thalweg.models.families.towers.common import act, sees_all, size, vision_config
from thalweg.models.spec import CrossAttention, Layer, LayerNorm, ModelSpec, Norms, PatchSource, UngatedMLP

TEXT, VISION = "text_decoder.", "vision_model."


def blip(config: Config) -> ModelSpec:
    if is_blind(config):
        raise UnsupportedModelError("config.json: the decoder of BLIP requires an image: omit --language-model-only")
    source, result = _encoder(config), bert_lm(config)
    hidden, e = hidden_size(config), real(config, "layer_norm_eps", default=1e-12)
    heads = integer(config, "num_attention_heads", high=1 << 10)
    cross = CrossAttention(
        heads=heads, head_dim=hidden // heads, varies=True, begins=True, width=source.outputs, sources=source.sources,
        bias=True, key_bias=True, name="crossattention", parts=("self.query", "self.key", "self.value"), out="output.dense",
    )  # fmt: skip
    layers: list[Layer] = []
    for each in result.layers:
        layers.append(Layer(each.mixer, None, Norms(mixer_sum=each.norms.mixer_sum)))
        norm = LayerNorm("crossattention.output.LayerNorm", hidden, e)
        layers.append(Layer(cross, each.ffn, Norms(mixer_sum=norm, ffn_sum=each.norms.ffn_sum)))
    prefixes = tuple((f"{TEXT}{old}", new) for old, new in result.names.replace)
    names = replace(
        result.names, replace=((f"{TEXT}{HEAD}", HEAD), *prefixes),
        skip=(f"{HEAD}decoder.bias", f"{TEXT}{HEAD}decoder.bias", "embeddings.position_ids"),
        inside=((f"{HEAD}decoder.weight", f"{HEAD}weight"),),
    )  # fmt: skip
    return replace(
        result, layers=tuple(layers), numbers=tuple(i // 2 for i in range(len(layers))), tile_source=source, names=names,
        learned=tuple(each for each in result.learned if each.by == "position"),
    )  # fmt: skip


def _encoder(config: Config) -> PatchSource:
    section = vision_config(config)
    hidden, e = size(section, "hidden_size", 768), real(section, "layer_norm_eps", default=1e-5)
    side, patch = edge(section, "image_size", 384), edge(section, "patch_size", 16)
    each = Layer(
        sees_all(
            size(section, "num_attention_heads", 12), hidden, bias=flag(section, "qkv_bias", True), out_bias=True, fused="qkv",
            out="projection",
        ),
        UngatedMLP(inner=size(section, "intermediate_size", 3072), bias=True, act=act(section, "hidden_act", "gelu")),
        Norms(mixer=LayerNorm("layer_norm1", hidden, e), ffn=LayerNorm("layer_norm2", hidden, e)),
    )  # fmt: skip
    return PatchSource(
        side=side // patch, kernel=(3, patch, patch), hidden=hidden, layers=(each,) * size(section, "num_hidden_layers", 12),
        learned=("class_embedding",), norm=LayerNorm("post_layernorm", hidden, e), outputs=hidden, root=VISION,
        patch="patch_embedding", places="position_embedding", layer="encoder.layers.{}.",
    )  # fmt: skip
