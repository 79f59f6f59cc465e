"""GIT: CLIP's encoder, whose vectors stand before the text in a causal decoder with BERT's layers (Wang et al. 2022,
https://arxiv.org/abs/2205.14100)."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import BESIDE, Config, real
from thalweg.models.families.bert_decoder import causal
from thalweg.models.families.common import hidden_size
from thalweg.models.families.multimodal import is_blind, seeing
from thalweg.models.families.towers.clip import encoder
from thalweg.models.families.towers.common import outer_config, size, vision_config
from thalweg.models.spec import Attention, Layer, LayerNorm, ModelSpec, VisionSpec
from thalweg.models.spec.vision import ProjectorLayer, ProjectorSpec

VISION = {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12, "image_size": 224,
    "patch_size": 16, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5, "model_type": "clip_vision_model",
}  # fmt: skip
PROJECTOR = "visual_projection.visual_projection."
NAMES = (
    ("git.image_encoder.vision_model.", "model.vision_tower."), ("git.image_encoder.", "model.vision_tower."),
    (f"git.{PROJECTOR}", f"model.{PROJECTOR}"),
)  # fmt: skip
HEAD = "output"
UNREAD = ("git.img_temporal_embedding.", "img_temporal_embedding.")
"""Of videos."""


def git(config: Config) -> ModelSpec:
    plain = {"type_vocab_size": 1, "tie_word_embeddings": False, **config, "is_decoder": True}
    result = causal(plain, "git.", HEAD)
    layers = tuple(_span(each) for each in result.layers)
    learned = tuple(each for each in result.learned if each.by == "position")
    result = replace(result, layers=layers, learned=learned, overlays_last=True, head=HEAD)
    unread = tuple(name for name in result.names.skip if name != f"{HEAD}.bias")  # the matrix has no part of another name
    blind = ("model.vision_tower.", f"model.{PROJECTOR}") if is_blind(config) else ()
    return seeing(result, config, _encoder, replace=(*NAMES, *result.names.replace), skip=(*unread, *UNREAD, *blind))


def _span(layer: Layer) -> Layer:
    """Tokens of an image attend to each other."""
    assert isinstance(layer.mixer, Attention)
    return replace(layer, mixer=replace(layer.mixer, spans=True))


def _encoder(config: Config) -> tuple[VisionSpec, tuple[str, ...]]:
    """All layers, and the norm behind them."""
    section = {**VISION, **vision_config(config), "model_type": "clip_vision_model"}
    around = {**config, BESIDE: {**outer_config(config), "vision_config": section}}
    hidden, norm = hidden_size(config), LayerNorm("1", hidden_size(config), real(section, "layer_norm_eps"))
    step = ProjectorLayer("0", size(section, "hidden_size", 768), hidden, True, norm=norm)
    projector = ProjectorSpec(root=f"model.{PROJECTOR}", steps=(step,))
    return encoder(around, size(section, "num_hidden_layers", 12), projector, normed=True)
