"""CLIP's encoder, and SigLIP's, which has no vector for the whole image."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, real
from thalweg.models.families.common import hidden_size
from thalweg.models.families.towers.common import act, feature_layers, sees_all, size, two_layers, vision_config
from thalweg.models.spec import Layer, LayerNorm, Norms, UngatedMLP, VisionSpec
from thalweg.models.spec.vision import ProjectorSpec


def clip(config: Config) -> tuple[VisionSpec, tuple[str, ...]]:
    """The encoder for LLaVA, and prefixes of its unread tensors."""
    return features(config, 24, -2)


def features(config: Config, layers: int, default: int) -> tuple[VisionSpec, tuple[str, ...]]:
    """Of one layer or several, counted as `vision_feature_layer` counts them. layers: there are, unless the file says so."""
    read = feature_layers(config, size(vision_config(config), "num_hidden_layers", layers), default)
    hidden = size(vision_config(config), "hidden_size", 1024)
    result, unread = encoder(config, max(read), two_layers(config, hidden * len(read), hidden_size(config), True))
    return (replace(result, reads=tuple(n - 1 for n in read)) if len(read) > 1 else result), unread


def encoder(config: Config, run: int, projector: ProjectorSpec, normed: bool = False) -> tuple[VisionSpec, tuple[str, ...]]:
    """run: layers that are computed. normed: their output is normalised."""
    section = vision_config(config)
    whole = section.get("model_type", "clip_vision_model") == "clip_vision_model"
    hidden, patch = size(section, "hidden_size", 1024 if whole else 1152), size(section, "patch_size", 14 if not whole else 32)
    layers, side = size(section, "num_hidden_layers", 24 if whole else 27), size(section, "image_size", 336)
    e = real(section, "layer_norm_eps", default=1e-5 if whole else 1e-6)
    each = Layer(
        sees_all(size(section, "num_attention_heads", 16), hidden, bias=True, out_bias=True, out="out_proj"),
        UngatedMLP(
            inner=size(section, "intermediate_size", 4096 if whole else 4304), bias=True,
            act=act(section, "hidden_act", "quick_gelu" if whole else "gelu_pytorch_tanh"),
        ),
        Norms(mixer=LayerNorm("layer_norm1", hidden, e), ffn=LayerNorm("layer_norm2", hidden, e)),
    )  # fmt: skip
    result = VisionSpec(
        hidden=hidden, layers=(each,) * run, projector=projector, patch="embeddings.patch_embedding",
        kernel=(size(section, "num_channels", 3), patch, patch), patch_bias=not whole, layer="encoder.layers.{}.",
        whole="embeddings.class_embedding" if whole else "", places="embeddings.position_embedding",
        rows=(side // patch) ** 2 + whole, enter=LayerNorm("pre_layrnorm", hidden, e) if whole else None,
        leave=LayerNorm("post_layernorm", hidden, e) if normed else None,
    )  # fmt: skip
    skip = [f"{result.root}{result.layer.format(i)}" for i in range(run, layers)] + [f"{result.root}head."]
    if result.leave is None:
        skip.append(f"{result.root}post_layernorm.")
    return result, tuple(skip)
