"""TrOCR: a ViT or DeiT encoder of an image, and a decoder as BART's. An image is the whole prompt."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, flag, integer, real, text
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.media.processors.base import edge
from thalweg.models.families.bart import EPS, FIRST, decoder_layers
from thalweg.models.families.common import hidden_size
from thalweg.models.families.donut import donut
from thalweg.models.families.multimodal import is_blind
from thalweg.models.families.towers.common import act, sees_all, size, vision_config
from thalweg.models.spec import Layer, LayerNorm, LearnedEmbedding, ModelSpec, Names, Norms, PatchSource, UngatedMLP

LEARNED = {"vit": ("cls_token",), "deit": ("cls_token", "distillation_token")}
"""Learned vectors before the patches, by the encoder's model_type."""
NAMES = (
    ("decoder.model.decoder.", "model.decoder."), ("decoder.output_projection.", "lm_head."), ("encoder.", "model.encoder."),
    ("enc_to_dec_proj.", "model.enc_to_dec_proj."),
)  # fmt: skip


def vision_encoder_decoder(config: Config) -> ModelSpec:
    """Any encoder and any decoder, of which those of TrOCR and Donut are supported. Users of vLLM override Donut's `model_type`
    with "donut"."""
    kind, eye = text(config, "model_type", "trocr"), text(vision_config(config), "model_type", "vit")
    if eye == "donut-swin" and kind in ("mbart", "donut") and not is_blind(config):
        return donut(config)
    if is_blind(config) or kind != "trocr" or eye not in LEARNED:
        raise UnsupportedModelError(
            f"config.json: encoder and decoder: {eye!r:.40} and {kind!r:.40} are not supported; pairs of vit or deit and "
            "trocr, and of donut-swin and mbart, are, with images"
        )
    if not flag(config, "use_learned_position_embeddings", True):
        raise UnsupportedModelError("config.json: decoder: use_learned_position_embeddings: false is not supported")
    hidden, source = hidden_size(config), _encoder(config, LEARNED[eye])
    layers = decoder_layers(config, False, sources=source.sources, width=source.outputs, begins=True)
    rows = integer(config, "max_position_embeddings", high=1 << 16, default=512) + FIRST
    return ModelSpec(
        vocab=integer(config, "vocab_size"), hidden=hidden, layers=layers,
        numbers=tuple(i // 2 for i in range(len(layers))), norm=None,
        embed_norm=LayerNorm("decoder.layernorm_embedding", hidden, EPS) if flag(config, "layernorm_embedding", True) else None,
        learned=(LearnedEmbedding("decoder.embed_positions", rows, first=FIRST),), tile_source=source,
        tied=flag(config, "tie_word_embeddings", True), layer="decoder.layers.{}.", embed="decoder.embed_tokens",
        embed_scale=hidden**0.5 if flag(config, "scale_embedding", False) else 1.0,
        names=Names(replace=NAMES, skip=("encoder.pooler.",)),
    )  # fmt: skip


def _encoder(config: Config, learned: tuple[str, ...]) -> PatchSource:
    section = vision_config(config)
    hidden, e = size(section, "hidden_size", 768), real(section, "layer_norm_eps", default=1e-12)
    side, patch = edge(section, "image_size", 224), edge(section, "patch_size", 16)
    bias, width = flag(section, "qkv_bias", True), config.get("cross_attention_hidden_size")
    if width not in (None, hidden):
        raise CheckpointError(f"config.json: decoder: cross_attention_hidden_size: {width!r:.20} must be {hidden}")
    projects = width is None and hidden != hidden_size(config)
    each = Layer(
        sees_all(
            size(section, "num_attention_heads", 12), hidden, bias=bias, out_bias=True, name="attention",
            parts=("attention.query", "attention.key", "attention.value"), out="output.dense",
        ),
        UngatedMLP(
            inner=size(section, "intermediate_size", 3072), bias=True, act=act(section, "hidden_act", "gelu"), name="",
            up="intermediate.dense", down="output.dense",
        ),
        Norms(mixer=LayerNorm("layernorm_before", hidden, e), ffn=LayerNorm("layernorm_after", hidden, e)),
    )  # fmt: skip
    return PatchSource(
        side=side // patch, kernel=(size(section, "num_channels", 3), patch, patch), hidden=hidden,
        layers=(each,) * size(section, "num_hidden_layers", 12), learned=learned, norm=LayerNorm("layernorm", hidden, e),
        projector="model.enc_to_dec_proj" if projects else "", outputs=hidden_size(config) if projects else hidden,
    )  # fmt: skip
