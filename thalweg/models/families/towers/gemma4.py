"""Gemma 4's encoder: norms around each part, rotary positions of columns and of rows in each head, averages of squares."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, flag, integer, real
from thalweg.models.families.common import hidden_size
from thalweg.models.families.towers.common import act, sees_all, size, vision_config
from thalweg.models.spec import MLP, AnyNorm, HeadNorm, Layer, Norm, Norms, Scale, VisionSpec
from thalweg.models.spec.vision import ProjectorLayer, ProjectorSpec

INSIDE = ((".linear.weight", ".weight"), ("vision_tower.std_", "embed_vision.std_"))
"""Names in files -> names declared here."""


def gemma4(config: Config) -> VisionSpec:
    section = vision_config(config)
    hidden, heads, patch = (
        size(section, key, default) for key, default in (("hidden_size", 768), ("num_attention_heads", 12), ("patch_size", 16))
    )
    e, pool = real(section, "rms_norm_eps", default=1e-6), integer(section, "pooling_kernel_size", high=16, default=3)
    mixer = sees_all(
        heads, hidden, turned=True, head_dim=size(section, "head_dim", 64), scale=1.0, norm=HeadNorm(e, value=True)
    )
    each = Layer(
        replace(mixer, kv_heads=size(section, "num_key_value_heads", heads)),
        MLP(inner=size(section, "intermediate_size", 3072), act=act(section, "hidden_activation", "gelu_pytorch_tanh")),
        Norms(
            mixer=Norm("input_layernorm", hidden, e), mixer_out=Norm("post_attention_layernorm", hidden, e),
            ffn=Norm("pre_feedforward_layernorm", hidden, e), ffn_out=Norm("post_feedforward_layernorm", hidden, e),
        ),
    )  # fmt: skip
    after: tuple[AnyNorm, ...] = (Norm("", hidden, e / hidden, weight=False),)  # of averages times hidden ** 0.5
    if flag(section, "standardize", False):
        after = (Scale("std_scale", hidden, hidden**0.5, "std_bias"), Norm("", hidden, e, weight=False))
    rows = size(section, "position_embedding_size", 10_240)
    return VisionSpec(
        hidden=hidden, layers=(each,) * size(section, "num_hidden_layers", 16), patch="patch_embedder.input_proj",
        kernel=(3 * patch**2,), layer="encoder.layers.{}.", places="patch_embedder.position_embedding_table", rows=2 * rows,
        stacks=2, halves=True, clipped=flag(section, "use_clipped_linears", False),
        projector=ProjectorSpec(
            root="model.embed_vision.", group=pool**2, join="mean", after=after,
            steps=(ProjectorLayer("embedding_projection", hidden, hidden_size(config)),),
        ),
    )  # fmt: skip
