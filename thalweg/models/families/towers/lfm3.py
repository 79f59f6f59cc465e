"""LFM3-VL's encoder: convolutions over patches between two gates, attention with QK-norm on every other layer."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, flag, integer, real
from thalweg.errors import UnsupportedModelError
from thalweg.models.families.common import hidden_size, layer_types
from thalweg.models.families.towers.common import act, outer_config, sees_all, size, vision_config
from thalweg.models.spec import MLP, GridConv, HeadNorm, Layer, LayerNorm, Mixer, Norm, Norms, VisionSpec
from thalweg.models.spec.vision import ProjectorLayer, ProjectorSpec

NAMES = ((".patchifier.", ".patch_embed."), (".q_layernorm.", ".q_norm."), (".k_layernorm.", ".k_norm."))
ROOT = "model.vision_tower."
CONV, FULL = "conv", "full_attention"


def lfm3_vl(config: Config) -> tuple[VisionSpec, tuple[str, ...]]:
    section, around = vision_config(config), outer_config(config)
    hidden, e = size(section, "hidden_size", 1024), real(section, "norm_eps", default=1e-5)
    heads, patch, kernel = (
        size(section, "num_attention_heads", 16),
        size(section, "patch_size", 16),
        size(section, "conv_kernel_size", 3),
    )
    count = size(section, "num_hidden_layers", 14)
    types = layer_types(section, [CONV if i < 2 or i % 2 else FULL for i in range(count)], known=(CONV, FULL))
    if kernel % 2 == 0 or FULL not in types:
        raise UnsupportedModelError(
            "config.json: vision_config: conv_kernel_size, layer_types: the size must be odd, and a layer must have attention"
        )
    attend = sees_all(heads, hidden, turned=True, out="out_proj", norm=HeadNorm(e))
    mixers: dict[str, Mixer] = {
        CONV: GridConv(inner=hidden, kernel=kernel), FULL: replace(attend, kv_heads=size(section, "num_key_value_heads", 8))
    }  # fmt: skip
    inner = MLP(inner=size(section, "intermediate_size", 2560), act="silu", name="feed_forward", gate="w1", up="w3", down="w2")
    norms = Norms(mixer=Norm("operator_norm", hidden, e), ffn=Norm("ffn_norm", hidden, e))
    group = integer(section, "spatial_merge_size", high=16, default=2) ** 2
    wide, bias = size(around, "projector_hidden_size", 4096), flag(around, "projector_bias", True)
    frames = integer(section, "temporal_patch_size", high=16, default=2)
    projector = ProjectorSpec(
        root="model.multi_modal_projector.", group=group, before=LayerNorm("layer_norm", hidden, 1e-6),
        steps=(
            ProjectorLayer("linear_1", hidden * group, wide, bias, act(around, "projector_hidden_act", "gelu")),
            ProjectorLayer("linear_2", wide, hidden_size(config), bias),
        ),
    )  # fmt: skip
    return VisionSpec(
        hidden=hidden, layers=tuple(Layer(mixers[kind], inner, norms) for kind in types), projector=projector, root=ROOT,
        patch="patch_embed", kernel=(size(section, "in_channels", 3) * frames * patch**2,), layer="layers.{}.",
        embedded=Norm("embedding_norm", hidden, e), neighbours=True,
    ), ()  # fmt: skip
