"""Granite-Docling, its coarse route: SigLIP encoder, pixel-shuffle projector with fixed positions, Granite decoder. Vectors of
some of the encoder's layers are added to the decoder's first."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, integer
from thalweg.errors import CheckpointError
from thalweg.models.families.common import hidden_size
from thalweg.models.families.granite import granite
from thalweg.models.families.multimodal import seeing
from thalweg.models.families.towers.clip import encoder
from thalweg.models.families.towers.common import outer_config, size, vision_config, with_defaults
from thalweg.models.families.towers.qwen_vl import read_layers
from thalweg.models.spec import LayerNorm, ModelSpec, VisionSpec
from thalweg.models.spec.vision import ProjectorLayer, ProjectorSpec

ROOT = "model.vision_model."
TEXT = {
    "num_key_value_heads": 4, "rms_norm_eps": 1e-5, "embedding_multiplier": 12.0, "logits_scaling": 4.0,
    "residual_multiplier": 0.263, "attention_multiplier": 0.015625,
}  # fmt: skip
VISION = {
    "model_type": "granite_docling_vision", "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
    "num_attention_heads": 12, "image_size": 512, "patch_size": 16,
}  # fmt: skip
FINE = (f"{ROOT}connector.fine.", "model.density_router.")
"""The route with more vectors of a tile, and the part that would select it."""
EPS = 1e-5


def granite_docling(config: Config) -> ModelSpec:
    tied = outer_config(config).get("tie_word_embeddings", True)
    spec = granite({**TEXT, **config, "tie_word_embeddings": tied})

    def scale_tower(config: Config) -> tuple[VisionSpec, tuple[str, ...]]:
        result, unread = tower(config)
        return replace(result, scale=spec.embed_scale), unread  # vectors of images are scaled, too

    return seeing(spec, config, scale_tower, replace=(("model.text_model.", "model."),), skip=FINE)


def tower(config: Config) -> tuple[VisionSpec, tuple[str, ...]]:
    """All layers, and the norm behind them."""
    config = with_defaults(config, **VISION)
    section = vision_config(config)
    hidden, out, depth = size(section, "hidden_size", 768), hidden_size(config), size(section, "num_hidden_layers", 12)
    scale, side = (
        integer(section, "scale_factor", high=16, default=4),
        size(section, "image_size", 512) // size(section, "patch_size", 16),
    )
    if side % scale or out % 4:
        raise CheckpointError(f"config.json: vision_config: scale_factor: {scale} must divide the {side} patches of an edge")
    if size(section, "out_hidden_size", out) != out:
        raise CheckpointError(f"config.json: vision_config: out_hidden_size: is not hidden_size, {out}")
    wide = hidden * scale**2
    projector = ProjectorSpec(
        root=f"{ROOT}connector.", group=scale**2, before=LayerNorm("ln_in", hidden, EPS),
        steps=(
            ProjectorLayer("coarse.projection", wide, out, act="gelu", grid=side // scale, norm=LayerNorm("ln_mid", out, EPS)),
            ProjectorLayer("mlp_fc2", out, out, norm=LayerNorm("ln_out", out, EPS)),
        ),
    )  # fmt: skip
    result, unread = encoder(config, depth, projector, normed=True)
    taps = read_layers(section, "deepstack_visual_indexes", (3, 7, 10), depth)
    return replace(
        result, root=ROOT, taps=tuple((layer, _merger(i, scale**2, wide, out)) for i, layer in enumerate(taps))
    ), unread


def _merger(index: int, group: int, wide: int, out: int) -> ProjectorSpec:
    """Of a layer's output, in the order of the layers."""
    steps = (ProjectorLayer("linear_1", wide, out, True, "gelu"), ProjectorLayer("linear_2", out, out, True))
    root = f"{ROOT}connector.coarse.deepstack_mergers.{index}."
    return ProjectorSpec(root=root, group=group, after=(LayerNorm("layer_norm", wide, EPS),), steps=steps)
