"""Donut: a Swin encoder of a page, and mBART's decoder, whose prompt names the task."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, flag, integer, real
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.media.processors.donut import page
from thalweg.models.families.bart import EPS, FIRST, decoder_layers
from thalweg.models.families.common import hidden_size
from thalweg.models.families.towers.common import act, size, vision_config
from thalweg.models.spec import LayerNorm, LearnedEmbedding, ModelSpec, Names, SwinSource

NAMES = (
    ("decoder.model.decoder.", "model.decoder."), ("decoder.lm_head.", "lm_head."), ("encoder.", "model.encoder."),
)  # fmt: skip


def donut(config: Config) -> ModelSpec:
    """config: of the decoder, with the encoder's as `vision_config`."""
    hidden, source = hidden_size(config), _encoder(config)
    if source.outputs != hidden:
        raise UnsupportedModelError(f"config.json: encoder: {source.outputs} values of a vector must be the decoder's {hidden}")
    layers = decoder_layers(config, True, sources=source.sources, width=hidden, begins=True)
    rows = integer(config, "max_position_embeddings", high=1 << 16, default=1024) + FIRST
    index = tuple(
        f"encoder.encoder.layers.{i}.blocks.{j}.attention.self.relative_position_index"
        for i, depth in enumerate(source.depths) for j in range(depth)
    )  # fmt: skip
    return ModelSpec(
        vocab=integer(config, "vocab_size"), hidden=hidden, layers=layers,
        numbers=tuple(i // 2 for i in range(len(layers))), norm=LayerNorm("decoder.layer_norm", hidden, EPS),
        embed_norm=LayerNorm("decoder.layernorm_embedding", hidden, EPS), tile_source=source,
        learned=(LearnedEmbedding("decoder.embed_positions", rows, first=FIRST),),
        tied=flag(config, "tie_word_embeddings", True), layer="decoder.layers.{}.", embed="decoder.embed_tokens",
        embed_scale=hidden**0.5 if flag(config, "scale_embedding", False) else 1.0,
        names=Names(replace=NAMES, skip=(*index, "encoder.embeddings.mask_token")),
    )  # fmt: skip


def _encoder(config: Config) -> SwinSource:
    section = vision_config(config)
    (rows, columns), patch = page(config), size(section, "patch_size", 4)
    depths, heads = (
        _sizes(section, key, default) for key, default in (("depths", [2, 2, 6, 2]), ("num_heads", [3, 6, 12, 24]))
    )
    window = size(section, "window_size", 7)
    last = [-(-n // (patch << (len(depths) - 1))) for n in (rows, columns)]
    if flag(section, "use_absolute_embeddings", False) or rows % patch or columns % patch or min(last) < window:
        raise UnsupportedModelError(
            "config.json: encoder: use_absolute_embeddings, pages that patches do not divide, and stages smaller than a window "
            "are not supported"
        )
    return SwinSource(
        rows=rows, columns=columns, patch=patch, channels=size(section, "num_channels", 3),
        hidden=size(section, "embed_dim", 96),
        depths=depths, heads=heads, window=window, inner=real(section, "mlp_ratio", 0.01, 100, default=4.0),
        act=act(section, "hidden_act", "gelu"), bias=flag(section, "qkv_bias", True),
        eps=real(section, "layer_norm_eps", default=1e-5),
    )  # fmt: skip


def _sizes(section: Config, key: str, default: list[int]) -> tuple[int, ...]:
    found = section.get(key) or default
    if not isinstance(found, list) or not all(type(n) is int and 0 < n < 1000 for n in found):
        raise CheckpointError(f"config.json: encoder: {key}: must be a list of sizes, not {found!r:.80}")
    return tuple(found)
