"""dots.ocr: encoder with two-axis RoPE, gated parts and RMSNorm, merged patches, Qwen2 decoder."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, flag, integer, real
from thalweg.errors import UnsupportedModelError
from thalweg.models.families import qwen2
from thalweg.models.families.common import hidden_size
from thalweg.models.families.multimodal import seeing
from thalweg.models.families.towers.common import sees_all, size, vision_config
from thalweg.models.spec import MLP, Layer, LayerNorm, ModelSpec, Norm, Norms, VisionSpec
from thalweg.models.spec.vision import ProjectorLayer, ProjectorSpec

ROOT = "model.vision_tower."
EPS = 1e-6
"""Of the norm before merging."""


def dots_ocr(config: Config) -> ModelSpec:
    return seeing(qwen2.qwen2({"attention_bias": True, **config}), config, tower)


def tower(config: Config) -> tuple[VisionSpec, tuple[str, ...]]:
    section = vision_config(config)
    hidden, patch, e = (
        size(section, "embed_dim", 1536),
        size(section, "patch_size", 14),
        real(section, "rms_norm_eps", default=1e-5),
    )
    if flag(section, "is_causal", False) or size(section, "temporal_patch_size", 1) != 1:
        raise UnsupportedModelError(
            "config.json: vision_config: is_causal, temporal_patch_size: only false and 1 are supported"
        )
    out = size(section, "hidden_size", 1536)
    if out != hidden_size(config):
        raise UnsupportedModelError(f"config.json: vision_config: hidden_size: must be {hidden_size(config)}, not {out}")
    bias, group = flag(section, "use_bias", False), integer(section, "spatial_merge_size", high=16, default=2) ** 2
    each = Layer(
        sees_all(
            size(section, "num_attention_heads", 12), hidden, turned=True, name="attn", fused="qkv", out="proj", bias=bias,
            out_bias=bias,
        ),
        MLP(inner=size(section, "intermediate_size", 4224), act="silu", bias=bias, gate="fc1", up="fc3", down="fc2"),
        Norms(mixer=Norm("norm1", hidden, e), ffn=Norm("norm2", hidden, e)),
    )  # fmt: skip
    wide = hidden * group
    projector = ProjectorSpec(
        root=f"{ROOT}merger.", group=group, before=LayerNorm("ln_q", hidden, EPS),
        steps=(ProjectorLayer("mlp.0", wide, wide, True, "gelu"), ProjectorLayer("mlp.2", wide, out, True)),
    )  # fmt: skip
    return VisionSpec(
        hidden=hidden, layers=(each,) * size(section, "num_hidden_layers", 42), projector=projector,
        patch="patch_embed.patchifier.proj", kernel=(size(section, "num_channels", 3), patch, patch), patch_bias=True,
        layer="blocks.{}.", embedded=Norm("patch_embed.patchifier.norm", hidden, e),
        leave=Norm("post_trunk_norm", hidden, e) if flag(section, "post_norm", True) else None,
    ), ()  # fmt: skip
