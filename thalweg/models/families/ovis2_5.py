"""Ovis 2.5 and 2.6: SigLIP 2 with two-axis RoPE, probabilities over a visual vocabulary and its embeddings, Qwen 3 decoder
(https://arxiv.org/abs/2508.11737)."""

from __future__ import annotations

from math import prod

from thalweg.checkpoint.config import Config, flag, integer, real
from thalweg.errors import UnsupportedModelError
from thalweg.media.processors.ovis2_5 import count_flat, count_places
from thalweg.models.families.common import hidden_size
from thalweg.models.families.multimodal import of_kind, seeing
from thalweg.models.families.towers.common import act, outer_config, sees_all, size, vision_config
from thalweg.models.spec import Layer, LayerNorm, ModelSpec, Norms, UngatedMLP, VisionSpec
from thalweg.models.spec.vision import ProjectorLayer, ProjectorSpec, TrailingRows

NAMES = (("llm.model.", "model."), ("llm.lm_head.", "lm_head."), ("visual_tokenizer.vit.vision_model.", "model.vision_tower."))
UNSEEN = ("visual_tokenizer.", "vte.", "model.visual_tokenizer.", "model.vte.")
TABLE = "vte"
EPS = 1e-5
INDICATORS = 4
"""Rows of the visual vocabulary for the tokens around an image and a video: its last."""


def ovis2_5(config: Config) -> ModelSpec:
    spec = of_kind(config, "qwen3", ("qwen3", "qwen3_moe"))
    skip = (
        () if isinstance(outer_config(config).get("vision_config"), dict) and not config.get("language_model_only") else UNSEEN
    )
    return seeing(spec, config, tower, replace=NAMES, skip=skip)


def tower(config: Config) -> tuple[VisionSpec, tuple[str, ...]]:
    """The last layer's output, without the norm behind it."""
    section = vision_config(config)
    hidden, patch, e = (
        size(section, "hidden_size", 1024),
        size(section, "patch_size", 16),
        real(section, "layer_norm_eps", default=1e-6),
    )
    if section.get("fullatt_block_indexes") is not None or size(section, "temporal_patch_size", 1) != 1:
        raise UnsupportedModelError(
            "config.json: vit_config: fullatt_block_indexes, temporal_patch_size: only null and 1 are supported"
        )
    if not flag(section, "use_rope", True):
        raise UnsupportedModelError("config.json: vit_config: use_rope: false is not supported by this version")
    each = Layer(
        sees_all(
            size(section, "num_attention_heads", 16), hidden, turned=True, bias=True, out_bias=True, out="out_proj"
        ),
        UngatedMLP(
            inner=size(section, "intermediate_size", 4096), bias=True, act=act(section, "hidden_act", "gelu_pytorch_tanh")
        ),
        Norms(mixer=LayerNorm("layer_norm1", hidden, e), ffn=LayerNorm("layer_norm2", hidden, e)),
    )  # fmt: skip
    kernel = (size(section, "num_channels", 3), patch, patch)
    flat = count_flat(section) > 0  # the convolution is stored as a matrix
    whole = flag(section, "preserve_original_pe", True)
    return VisionSpec(
        hidden=hidden, layers=(each,) * size(section, "num_hidden_layers", 24), projector=_projector(config, section, hidden),
        patch="embeddings.patch_embedding", patch_bias=True, layer="encoder.layers.{}.",
        kernel=(prod(kernel),) if flat else kernel, places="embeddings.position_embedding" if whole else "",
        rows=count_places(section) if whole else 0,
        newline=f"model.{TABLE}", newlines=TrailingRows(_words(config), INDICATORS),
    ), ("model.vision_tower.post_layernorm.",)  # fmt: skip


def _words(config: Config) -> int:
    return integer(outer_config(config), "visual_vocab_size", low=INDICATORS + 1, high=1 << 24, default=65_536)


def _projector(config: Config, section: Config, hidden: int) -> ProjectorSpec:
    rows, group = _words(config), integer(section, "hidden_stride", high=16, default=2) ** 2
    words = rows - INDICATORS
    return ProjectorSpec(
        root="model.", group=group,
        steps=(
            ProjectorLayer(
                "visual_tokenizer.head.0", hidden * group, words, act="softmax", zeros=INDICATORS,
                norm=LayerNorm("visual_tokenizer.head.1", words, EPS),
            ),
            ProjectorLayer(TABLE, rows, hidden_size(config), turned=True),
        ),
    )  # fmt: skip
