"""Llama 4's encoder: rotary positions of columns and of rows in each head, learned places, four patches to a vector."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config
from thalweg.media.processors.base import edge, shuffle
from thalweg.models.families.common import hidden_size
from thalweg.models.families.towers.common import sees_all, size, vision_config
from thalweg.models.spec import Layer, LayerNorm, Norms, UngatedMLP, VisionSpec
from thalweg.models.spec.vision import ProjectorLayer, ProjectorSpec

EPS = 1e-5


def llama4(config: Config) -> tuple[VisionSpec, tuple[str, ...]]:
    section = vision_config(config)
    hidden, inner = size(section, "hidden_size", 768), size(section, "intermediate_size", 5632)
    side, patch, group = (
        edge(section, "image_size", 448),
        edge(section, "patch_size", 14),
        shuffle(section, "pixel_shuffle_ratio") ** 2,
    )
    mixer = sees_all(size(section, "num_attention_heads", 16), hidden, turned=True, bias=True, out_bias=True)
    assert mixer.rope is not None
    each = Layer(
        replace(mixer, rope=replace(mixer.rope, interleaved=True)), UngatedMLP(inner=inner, act="gelu", bias=True),
        Norms(mixer=LayerNorm("input_layernorm", hidden, EPS), ffn=LayerNorm("post_attention_layernorm", hidden, EPS)),
    )  # fmt: skip
    first, second, adapter = (
        size(section, "projector_input_dim", 4096), size(section, "projector_output_dim", 4096),
        "vision_model.vision_adapter.mlp.fc"
    )  # fmt: skip
    steps = (
        ProjectorLayer(f"{adapter}1", hidden * group, first, act="gelu"), ProjectorLayer(f"{adapter}2", second, second,
        act="gelu"),
        ProjectorLayer("multi_modal_projector.linear_1", size(section, "vision_output_dim", 7680), hidden_size(config)),
    )  # fmt: skip
    return VisionSpec(
        hidden=hidden, layers=(each,) * size(section, "num_hidden_layers", 34), patch="patch_embedding.linear",
        kernel=(3 * patch**2,), root="model.vision_model.", layer="model.layers.{}.", whole="class_embedding",
        places="positional_embedding_vlm", rows=(side // patch) ** 2 + 1, last=True,
        enter=LayerNorm("layernorm_pre", hidden, EPS), leave=LayerNorm("layernorm_post", hidden, EPS),
        projector=ProjectorSpec(root="model.", group=group, steps=steps),
    ), ()  # fmt: skip
