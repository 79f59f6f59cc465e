"""MiniCPM-V 4.6 and 4.7, and MiniCPM-OCR: SigLIP encoder with two patch merges, or one, Qwen3.5 decoder."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import BESIDE, Config, integer, text
from thalweg.errors import UnsupportedModelError
from thalweg.models.families import qwen3_next
from thalweg.models.families.common import hidden_size
from thalweg.models.families.multimodal import is_blind, seeing, with_axes
from thalweg.models.families.towers.clip import encoder
from thalweg.models.families.towers.common import outer_config, size, vision_config, with_defaults
from thalweg.models.spec import Layer, LayerNorm, ModelSpec, Norms, VisionSpec
from thalweg.models.spec.vision import ProjectorLayer, ProjectorSpec

SIGLIP = {
    "model_type": "siglip_vision_model", "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
    "num_attention_heads": 12, "patch_size": 16, "image_size": 224,
}  # fmt: skip
ROOT = "model.vision_tower."
GROUP = 4
"""Patches that become one, each time."""


def minicpm_v(config: Config) -> ModelSpec:
    spec = qwen3_next.qwen3_5({**config, "mtp_num_hidden_layers": 0})  # its files have no such module
    if is_blind(config):
        return seeing(spec, config, tower, skip=("model.merger.",))
    if not _merges_twice(config):
        return seeing(spec, config, tower, skip=(f"{ROOT}vit_merger.",))
    at, count = _places(config)
    behind = tuple((f"{ROOT}encoder.layers.{i}.", f"{ROOT}encoder.layers.{i + 1}.") for i in range(at, count))
    parts = tuple((f"{ROOT}vit_merger.{part}.", f"{ROOT}encoder.layers.{at}.{part}.") for part in ("self_attn", "layer_norm1"))
    return seeing(spec, config, tower, replace=(*behind, *parts))


def minicpm_ocr(config: Config) -> ModelSpec:
    return minicpm_v({**config, BESIDE: {"downsample_mode": "4x", **outer_config(config)}})


def minicpm_v_4_7(config: Config) -> ModelSpec:
    return with_axes(minicpm_v(config), config, mixed=True)


def _merges_twice(config: Config) -> bool:
    """Within the encoder too, or only behind it?"""
    mode = text(outer_config(config), "downsample_mode", "16x")
    if mode not in ("4x", "16x") or integer(outer_config(config), "merger_times", default=1) != 1:
        raise UnsupportedModelError("config.json: downsample_mode, merger_times: this version merges 4 patches, once or twice")
    return mode == "16x"


def _places(config: Config) -> tuple[int, int]:
    """Layers before the merger, and the total without the merger's layers."""
    section, around = vision_config(with_defaults(config, **SIGLIP)), outer_config(config)
    count = size(section, "num_hidden_layers", 12)
    return integer(around, "insert_layer_id", low=0, high=count - 1, default=6) + 1, count


def tower(config: Config) -> tuple[VisionSpec, tuple[str, ...]]:
    """The merger begins with attention within its windows, which is declared as a layer."""
    config = with_defaults(config, **SIGLIP)
    section, (at, count) = vision_config(config), _places(config)
    hidden, inner = size(section, "hidden_size", 768), size(section, "intermediate_size", 3072)
    wide = GROUP * hidden
    projector = ProjectorSpec(
        root="model.merger.mlp.0.", group=GROUP, after=(LayerNorm("pre_norm", wide, 1e-6),),
        steps=(ProjectorLayer("linear_1", wide, wide, True, "gelu"), ProjectorLayer("linear_2", wide, hidden_size(config),
        True)),
    )  # fmt: skip
    result, unread = encoder(config, count, projector, normed=True)
    if not _merges_twice(config):
        return result, unread
    each = result.layers[0]
    norm = each.norms.mixer
    assert isinstance(norm, LayerNorm)
    shrinks = ProjectorSpec(
        root=f"{ROOT}vit_merger.", group=GROUP, after=(replace(norm, name="pre_norm", size=wide),),
        steps=(
            ProjectorLayer("linear_1", wide, GROUP * inner, True, "gelu_tanh"), ProjectorLayer("linear_2", GROUP * inner,
            hidden, True),
        ),
    )  # fmt: skip
    layers = (*result.layers[:at], Layer(each.mixer, None, Norms(mixer=norm)), *result.layers[at:])
    return replace(result, layers=layers, windowed=frozenset({at}), shrinks=(at, shrinks)), unread
