"""Ovis 2: an encoder of square tiles with vectors that become probabilities over a visual vocabulary, and its embeddings, for a
Qwen 2 decoder."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, flag, integer, real, text
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.media.processors.base import edge
from thalweg.models.families.common import hidden_size
from thalweg.models.families.multimodal import of_kind, seeing
from thalweg.models.families.towers.common import act, outer_config, sees_all, size, vision_config
from thalweg.models.spec import MLP, Layer, LayerNorm, ModelSpec, Norm, Norms, VisionSpec
from thalweg.models.spec.vision import ProjectorLayer, ProjectorSpec, TrailingRows

ROOT = "model.vision_tower."
TABLE = "visual_embeddings_table"
EPS = 1e-5


def ovis2(config: Config) -> ModelSpec:
    tied = outer_config(config).get("tie_word_embeddings", True)
    return seeing(of_kind({**config, "tie_word_embeddings": tied}, "qwen2"), config, tower)


def tower(config: Config) -> tuple[VisionSpec, tuple[str, ...]]:
    section = vision_config(config)
    if (kind := text(section, "tokenize_function", "softmax")) != "softmax":
        raise UnsupportedModelError(f"config.json: vision_config: tokenize_function: {kind!r:.40}: only softmax is supported")
    hidden, e, bias = (
        size(section, "hidden_size", 1024),
        real(section, "rms_norm_eps", default=1e-5),
        flag(section, "qkv_bias", False),
    )
    side, patch = edge(section, "image_size", 224), edge(section, "patch_size", 14)
    each = Layer(
        sees_all(
            size(section, "num_attention_heads", 8), hidden, bias=bias, out_bias=bias, name="attention", out="out_proj",
        ),
        MLP(
            inner=size(section, "intermediate_size", 2816), act=act(section, "hidden_act", "silu"), name="ffn",
            bias=flag(section, "mlp_bias", False),
        ),
        Norms(mixer=Norm("rms_norm1", hidden, e), ffn=Norm("rms_norm2", hidden, e)),
    )  # fmt: skip
    return VisionSpec(
        hidden=hidden, layers=(each,) * size(section, "num_hidden_layers", 24), projector=_projector(config, section, hidden),
        patch="transformer.embeddings.patch_embedding", kernel=(size(section, "num_channels", 3), patch, patch),
        patch_bias=True,
        root=ROOT, layer="transformer.encoder.layers.{}.", places="transformer.embeddings.position_embedding",
        rows=(side // patch) ** 2, embedded=Norm("transformer.embeddings.rms_norm", hidden, e),
        leave=Norm("transformer.rms_norm", hidden, e), newline=f"model.{TABLE}", newlines=_indicators(section),
    ), ()  # fmt: skip


def _indicators(section: Config) -> TrailingRows:
    """The rows of the visual vocabulary for the tokens around tiles: its last."""
    return TrailingRows(
        size(section, "vocab_size", 16_384), integer(section, "num_visual_indicator_tokens", high=64, default=5)
    )


def _projector(config: Config, section: Config, hidden: int) -> ProjectorSpec:
    rows, group = _indicators(section), size(section, "hidden_stride", 1) ** 2
    if rows.count >= rows.stored:
        raise CheckpointError("config.json: vision_config: num_visual_indicator_tokens: must be less than vocab_size")
    words = rows.stored - rows.count
    return ProjectorSpec(
        root="model.", group=group,
        steps=(
            ProjectorLayer(
                "vision_tower.head_linear", hidden * group, words, act="softmax", zeros=rows.count,
                norm=LayerNorm("vision_tower.head_norm", words, EPS),
            ),
            ProjectorLayer(TABLE, rows.stored, hidden_size(config), turned=True),
        ),
    )  # fmt: skip
