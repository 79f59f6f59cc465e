"""GLM-4.1V's encoder: Qwen's order of patches, learned places stretched smoothly, a convolution that merges, a gated merger."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, flag, integer, real
from thalweg.models.families.common import hidden_size
from thalweg.models.families.towers.common import act, seen, sees_all, size
from thalweg.models.spec import MLP, Layer, LayerNorm, Norm, Norms, Vision
from thalweg.models.spec.vision import Projector, Step

EPS = 1e-5


def glm4v(config: Config) -> tuple[Vision, tuple[str, ...]]:
    said = seen(config)
    hidden, patch, out = (
        size(said, key, default) for key, default in (("hidden_size", 1536), ("patch_size", 14), ("out_hidden_size", 4096))
    )
    e, merge = real(said, "rms_norm_eps", 0, 1, default=EPS), integer(said, "spatial_merge_size", high=16, default=2)
    gate, inner = act(said, "hidden_act", "silu"), size(said, "intermediate_size", 13_696)
    each = Layer(
        sees_all(
            size(said, "num_heads", 12), hidden, turned=True, name="attn", fused="qkv", out="proj",
            bias=flag(said, "attention_bias", False),
        ),
        MLP(inner=out, act=gate),
        Norms(mixer=Norm("norm1", hidden, e), ffn=Norm("norm2", hidden, e)),
    )  # fmt: skip
    steps = (
        Step("downsample", hidden * merge**2, out, True, kernel=(hidden, merge, merge)),
        Step("merger.proj", out, out, act="gelu", norm=LayerNorm("merger.post_projection_norm", out, EPS)),
        Step("merger.gate_proj", out, inner, act=gate, up="merger.up_proj"),
        Step("merger.down_proj", inner, hidden_size(config)),
    )  # fmt: skip
    return Vision(
        hidden=hidden, layers=(each,) * size(said, "depth", 24), patch="patch_embed.proj", patch_bias=True,
        kernel=(size(said, "in_channels", 3), size(said, "temporal_patch_size", 2), patch, patch), root="model.visual.",
        layer="blocks.{}.", places="embeddings.position_embedding", rows=(size(said, "image_size", 336) // patch) ** 2,
        embedded=Norm("post_conv_layernorm", hidden, e), leave=Norm("post_layernorm", hidden, e),
        projector=Projector(root="model.visual.", group=merge**2, join="channels", steps=steps),
    ), ()  # fmt: skip
