"""CLIP and SigLIP: a text encoder and an image encoder, which give vectors of one space."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, integer, real
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models.families.common import act, hidden_size, layer_count, pooling
from thalweg.models.families.towers import clip as tower
from thalweg.models.families.towers.common import ACTS, outer_config, size, vision_config, with_defaults
from thalweg.models.spec import Attention, Layer, LayerNorm, LearnedEmbedding, ModelSpec, Names, Norms, UngatedMLP, VisionSpec
from thalweg.models.spec.vision import AttentionPoolSpec, ProjectorLayer, ProjectorSpec
from thalweg.models.tail import Dense

CLIP_VISION = {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12, "image_size": 224,
    "patch_size": 32, "model_type": "clip_vision_model",
}  # fmt: skip
SIGLIP_VISION = {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12, "image_size": 224,
    "patch_size": 16, "model_type": "siglip_vision_model",
}  # fmt: skip
UNREAD = ("logit_scale", "logit_bias", "text_model.embeddings.position_ids", "vision_model.embeddings.position_ids")


def clip(config: Config) -> ModelSpec:
    """The text's vector is of its last token, the end of text."""
    config = with_defaults(config, **CLIP_VISION)
    outputs = integer(outer_config(config), "projection_dim", high=1 << 20, default=512)
    result, _ = tower.encoder(config, _layers(config), _projector(config, outputs), normed=True)
    vision = replace(result, root="vision_model.")
    dense = Dense("", hidden_size(config), outputs, bias=False, act="none", name="text_projection")
    return _joint(config, vision, dense, causal=True)


def siglip(config: Config) -> ModelSpec:
    """Texts are filled up to the longest, and all of their tokens see each other. An image's vector is of a learned query,
    which attends to its patches."""
    config = with_defaults(config, **SIGLIP_VISION)
    hidden = size(vision_config(config), "hidden_size", 768)
    outputs = integer(config, "projection_size", high=1 << 20, default=hidden_size(config))
    if config.get("vision_use_head") is False or vision_config(config).get("vision_use_head") is False:
        raise UnsupportedModelError("config.json: vision_use_head: false is not supported: such images have no vector")
    if hidden != outputs:
        raise UnsupportedModelError(f"config.json: projection_size: {outputs}, but images have vectors of {hidden} numbers")
    result, _ = tower.encoder(config, _layers(config), ProjectorSpec(root="", steps=()), normed=True)
    first = result.layers[0]
    assert isinstance(first.mixer, Attention)
    assert isinstance(first.ffn, UngatedMLP)
    pool = AttentionPoolSpec(
        name="head.", hidden=hidden, heads=first.mixer.heads, inner=first.ffn.inner, act=first.ffn.act,
        norm=LayerNorm("head.layernorm", hidden, _eps(vision_config(config), 1e-6)),
    )  # fmt: skip
    dense = Dense("", hidden_size(config), outputs, bias=True, act="none", name="text_model.head")
    return _joint(config, replace(result, root="vision_model.", pool=pool), dense, causal=False)


def _joint(config: Config, vision: VisionSpec, dense: Dense, causal: bool) -> ModelSpec:
    hidden, e = hidden_size(config), _eps(config, 1e-5 if causal else 1e-6)
    if dense.outputs != hidden:
        raise UnsupportedModelError(
            f"config.json: vectors of {dense.outputs} numbers, of texts with hidden size {hidden}, are not supported"
        )
    heads = integer(config, "num_attention_heads", high=1 << 16)
    if hidden % heads:
        raise CheckpointError(f"config.json: hidden_size ({hidden}) must be a multiple of num_attention_heads ({heads})")
    gelu = act(config, default="quick_gelu" if causal else "gelu_pytorch_tanh", known=ACTS)
    layer = Layer(
        Attention(
            heads=heads, kv_heads=heads, head_dim=hidden // heads, causal=causal, bias=True, out_bias=True, out="out_proj",
        ),
        UngatedMLP(inner=integer(config, "intermediate_size", high=1 << 24), bias=True, act=gelu),
        Norms(mixer=LayerNorm("layer_norm1", hidden, e), ffn=LayerNorm("layer_norm2", hidden, e)),
    )  # fmt: skip
    rows = integer(config, "max_position_embeddings", high=1 << 20)
    tail = replace(pooling(config, default="last"), dense=(dense,), encoded=True, fills=not causal)
    return ModelSpec(
        vocab=integer(config, "vocab_size", high=1 << 24), hidden=hidden, layers=(layer,) * layer_count(config),
        norm=LayerNorm("text_model.final_layer_norm", hidden, e), pooling=tail, root="",
        layer="text_model.encoder.layers.{}.", embed="text_model.embeddings.token_embedding",
        learned=(LearnedEmbedding("text_model.embeddings.position_embedding", rows),), names=Names(skip=UNREAD), vision=vision,
    )  # fmt: skip


def _projector(config: Config, outputs: int) -> ProjectorSpec:
    inputs = size(vision_config(config), "hidden_size", 768)
    return ProjectorSpec(root="", steps=(ProjectorLayer("visual_projection", inputs, outputs),))


def _layers(config: Config) -> int:
    return size(vision_config(config), "num_hidden_layers", 12)


def _eps(config: Config, default: float) -> float:
    return real(config, "layer_norm_eps", default=default)
