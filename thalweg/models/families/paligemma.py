"""PaliGemma and PaliGemma 2: SigLIP encoder, one linear layer, Gemma or Gemma 2 decoder. All tokens of a prompt with an image
attend to each other (Beyer et al. 2024, https://arxiv.org/abs/2407.07726)."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config
from thalweg.errors import UnsupportedModelError
from thalweg.models.families.common import hidden_size
from thalweg.models.families.multimodal import is_blind, of_kind, seeing
from thalweg.models.families.towers.clip import encoder
from thalweg.models.families.towers.common import outer_config, size, vision_config, with_defaults
from thalweg.models.spec import ModelSpec, VisionSpec
from thalweg.models.spec.vision import ProjectorLayer, ProjectorSpec

SIGLIP = {
    "model_type": "siglip_vision_model", "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
    "num_attention_heads": 12, "patch_size": 16, "image_size": 224,
}  # fmt: skip
"""Defaults of transformers' SiglipVisionConfig."""


def paligemma(config: Config) -> ModelSpec:
    spec = read_text(config, ("gemma", "gemma2"))
    if not is_blind(config):
        windows = [w for layer in spec.layers if (w := getattr(layer.mixer, "window", 0))]
        if min(windows, default=_vectors(config) + 1) <= _vectors(config):
            raise UnsupportedModelError(
                f"config.json: sliding_window: must be larger than an image, which has {_vectors(config)} tokens; "
                "--language-model-only serves the text part"
            )
        layers = tuple(replace(each, mixer=replace(each.mixer, spans=True)) for each in spec.layers)  # type: ignore[type-var]
        spec = replace(spec, layers=layers)
    return seeing(spec, config, tower)


def read_text(config: Config, known: tuple[str, ...]) -> ModelSpec:
    """The text part. known: accepted values of its `model_type`."""
    tied = outer_config(config).get("tie_word_embeddings", True)
    # transformers writes the key, and reads the mask of a prompt from its token types in any case.
    text = {key: value for key, value in config.items() if key != "use_bidirectional_attention"}
    return of_kind({**text, "tie_word_embeddings": tied}, "gemma", known)


def _vectors(config: Config) -> int:
    """Of one image."""
    section = vision_config(with_defaults(config, **SIGLIP))
    return (size(section, "image_size", 224) // size(section, "patch_size", 16)) ** 2


def tower(config: Config) -> tuple[VisionSpec, tuple[str, ...]]:
    """All layers, and the norm behind them."""
    config = with_defaults(config, **SIGLIP)
    section = vision_config(config)
    step = ProjectorLayer("linear", size(section, "hidden_size", 768), hidden_size(config), True)
    projector = ProjectorSpec(root="model.multi_modal_projector.", steps=(step,))
    return encoder(config, size(section, "num_hidden_layers", 12), projector, normed=True)
