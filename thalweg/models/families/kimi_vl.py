"""Kimi-VL and Kimi K2.5: MoonViT encoder (any aspect ratio, two-axis RoPE), DeepSeek V3 decoder."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, real, text
from thalweg.errors import UnsupportedModelError
from thalweg.media.processors.kimi import merge, sizes, table
from thalweg.models.families import deepseek
from thalweg.models.families.common import hidden_size
from thalweg.models.families.multimodal import seeing
from thalweg.models.families.towers.common import act, outer_config, sees_all, size, vision_config
from thalweg.models.spec import Layer, LayerNorm, ModelSpec, Norms, UngatedMLP, VisionSpec
from thalweg.models.spec.vision import ProjectorLayer, ProjectorSpec

EPS = 1e-5
OUTSIDE = (
    ("language_model.model.blocks.", "model.layers."),
    ("vision_tower.encoder.patch_embed.", "model.vision_tower.patch_embed."),
)  # fmt: skip
"""As transformers writes them."""
INSIDE = ((".wqkv.", ".attn.wqkv."), (".wo.", ".attn.wo."))


def kimi_k25(config: Config) -> ModelSpec:
    kind = (
        text(vision_config(config), "mm_projector_type", "patchmerger")
        if isinstance(outer_config(config).get("vision_config"), dict)
        else ""
    )
    if kind not in ("", "patchmerger"):
        raise UnsupportedModelError(f"config.json: vision_config: mm_projector_type: {kind!r:.40} is not supported")
    return _model(config, "mm_projector.", ("proj.0", "proj.2"))


def kimi_vl(config: Config) -> ModelSpec:
    return _model(config, "multi_modal_projector.", ("linear_1", "linear_2"))


def _model(config: Config, root: str, names: tuple[str, str]) -> ModelSpec:
    spec = replace(deepseek.deepseek_v3(config), mtp=None)  # its tensors have other names
    return seeing(spec, config, lambda c: (moonvit(c, f"model.{root}", names), ()), replace=OUTSIDE, inside=INSIDE)


def moonvit(config: Config, root: str, names: tuple[str, str]) -> VisionSpec:
    """root, names: of the projector."""
    section = sizes(vision_config(config))
    hidden, patch, side, group = (
        size(section, "hidden_size", 1152),
        size(section, "patch_size", 14),
        table(section),
        merge(section) ** 2,
    )
    mixer = sees_all(
        size(section, "num_attention_heads", 16),
        hidden,
        turned=True,
        name="attn",
        fused="wqkv",
        out="wo",
        bias=True,
        out_bias=True,
    )
    assert mixer.rope is not None
    each = Layer(
        replace(mixer, rope=replace(mixer.rope, interleaved=True)),
        UngatedMLP(
            inner=size(section, "intermediate_size", 4304), act=act(section, "hidden_act", "gelu_pytorch_tanh"), bias=True,
            up="fc0",
            down="fc1",
        ),
        Norms(mixer=LayerNorm("norm0", hidden, EPS), ffn=LayerNorm("norm1", hidden, EPS)),
    )  # fmt: skip
    e = real(
        outer_config(config), "projection_layer_norm_eps", 0, 1, default=real(section, "projector_ln_eps", 0, 1, default=EPS)
    )
    wide = hidden * group
    return VisionSpec(
        hidden=hidden, layers=(each,) * size(section, "num_hidden_layers", 27), patch="patch_embed.proj", patch_bias=True,
        kernel=(3, patch, patch), layer="encoder.blocks.{}.", places="patch_embed.pos_emb.weight", rows=side**2, stacks=side,
        leave=LayerNorm("encoder.final_layernorm", hidden, EPS),
        projector=ProjectorSpec(
            root=root, group=group, before=LayerNorm("pre_norm", hidden, e),
            steps=(ProjectorLayer(names[0], wide, wide, True, "gelu"), ProjectorLayer(names[1], wide, hidden_size(config),
            True)),
        ),
    )  # fmt: skip
