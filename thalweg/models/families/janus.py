"""Janus and Janus-Pro, which read images and write text: SigLIP encoder, an aligner of linear layers, Llama decoder. Images as
output are not supported."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import BESIDE, Config, flag, integer, real
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models.families.common import hidden_size
from thalweg.models.families.multimodal import of_kind, seeing
from thalweg.models.families.towers.clip import encoder
from thalweg.models.families.towers.common import act, outer_config, size, vision_config
from thalweg.models.spec import Attention, Layer, ModelSpec, VisionSpec
from thalweg.models.spec.vision import ProjectorLayer, ProjectorSpec

VISION = {
    "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "patch_size": 16, "image_size": 384,
    "hidden_act": "gelu",
}  # fmt: skip
NAMES = (("model.vision_model.", "model.vision_tower."), ("model.aligner.", "model.multi_modal_projector."))
DRAWS = ("vqmodel.", "generation_embeddings.", "generation_aligner.", "generation_head.")
"""Tensors for images as output."""
UNREAD = tuple(f"{root}{part}" for root in ("", "model.") for part in DRAWS)


def janus(config: Config) -> ModelSpec:
    tied = outer_config(config).get("tie_word_embeddings", True)
    spec = of_kind({**config, "tie_word_embeddings": tied}, "llama", ("llama",))
    return seeing(spec, config, tower, replace=NAMES, skip=UNREAD)


def tower(config: Config) -> tuple[VisionSpec, tuple[str, ...]]:
    """All layers, and the norm behind them."""
    section = {**VISION, **vision_config(config)}
    if flag(section, "use_qk_norm", False):
        raise UnsupportedModelError("config.json: vision_config: use_qk_norm: true is not supported by this version")
    hidden, out = size(section, "hidden_size", 1024), size(section, "projection_dim", 2048)
    if out != hidden_size(config):
        raise CheckpointError(f"config.json: vision_config: projection_dim: {out} is not hidden_size, {hidden_size(config)}")
    name, depth = act(section, "hidden_act", "gelu"), integer(section, "depth", high=64, default=2)
    first = ProjectorLayer("fc1", hidden, out, True, name if depth > 1 else "")
    more = (ProjectorLayer(f"hidden_layers.{i}", out, out, True, name if i + 2 < depth else "") for i in range(depth - 1))
    inner = int(hidden * real(section, "mlp_ratio", 0.01, 100, default=4.0))
    siglip = {**section, "model_type": "siglip_vision_model", "intermediate_size": inner}
    around = {**config, BESIDE: {**outer_config(config), "vision_config": siglip}}
    projector = ProjectorSpec(root="model.multi_modal_projector.", steps=(first, *more))
    result, unread = encoder(around, size(section, "num_hidden_layers", 24), projector, normed=True)
    return replace(
        result, layers=tuple(_rename(layer, flag(section, "attention_bias", True)) for layer in result.layers)
    ), unread


def _rename(layer: Layer, bias: bool) -> Layer:
    assert isinstance(layer.mixer, Attention)
    return replace(layer, mixer=replace(layer.mixer, out="projection_layer", bias=bias))
