"""DeepSeek-VL2: SigLIP encoder, the whole image and tiles with merged patches, learned vectors after rows and between both,
DeepSeek-V2 decoder."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, flag, integer, real, section, text
from thalweg.errors import UnsupportedModelError
from thalweg.models.families import deepseek
from thalweg.models.families.common import hidden_size, layer_count
from thalweg.models.families.deepseek_ocr2 import decode_layers
from thalweg.models.families.multimodal import is_blind, seeing
from thalweg.models.families.towers.common import outer_config, sees_all, size, vision_config
from thalweg.models.spec import Layer, LayerNorm, ModelSpec, Norms, UngatedMLP, VisionSpec
from thalweg.models.spec.vision import ProjectorLayer, ProjectorSpec

TOWER = "model.vision_tower."
NAMES = (
    ("language.model.", "model."), ("language.lm_head.", "lm_head."), ("vision.", TOWER), ("projector.", "model.projector."),
    ("image_newline", "model.image_newline"), ("view_seperator", "model.view_separator"),
)  # fmt: skip
"""The authors spell `view_seperator`."""
OF_IMAGES = (TOWER, "model.projector.")
EPS = 1e-6


def deepseek_vl2(config: Config) -> ModelSpec:
    spec = deepseek.deepseek_v2(config) if flag(config, "use_mla", True) else _plain(config)
    unread = (*spec.names.skip, *(OF_IMAGES if is_blind(config) else ()))
    return seeing(spec, config, _tower, replace=NAMES, skip=unread)


def _plain(config: Config) -> ModelSpec:
    """Llama's attention, of the smallest model."""
    dense = integer(config, "first_k_dense_replace", low=0, default=1)
    kinds = ["dense" if i < dense else "sparse" for i in range(layer_count(config))]
    return decode_layers({**config, "mlp_layer_types": kinds, "head_dim": None}, tied=False)


def _tower(config: Config) -> tuple[VisionSpec, tuple[str, ...]]:
    around, settings, out = outer_config(config), vision_config(config), hidden_size(config)
    joins = section(around, "projector_config")
    kind, place = text(joins, "projector_type", "downsample_mlp_gelu"), text(around, "global_view_pos", "head")
    if kind != "downsample_mlp_gelu" or flag(joins, "token_pooling", False):
        raise UnsupportedModelError("config.json: projector_type: only downsample_mlp_gelu without token_pooling is supported")
    if text(around, "tile_tag", "2D") != "2D" or place != "head":
        raise UnsupportedModelError("config.json: tile_tag, global_view_pos: only 2D and head are supported")
    hidden, patch = size(settings, "width", 1152), size(settings, "patch_size", 14)
    each = Layer(
        sees_all(size(settings, "heads", 16), hidden, name="attn", fused="qkv", out="proj", bias=True, out_bias=True),
        UngatedMLP(inner=int(hidden * real(settings, "mlp_ratio", 0.01, 100, default=3.7362)), bias=True, act="gelu"),
        Norms(mixer=LayerNorm("norm1", hidden, EPS), ffn=LayerNorm("norm2", hidden, EPS)),
    )  # fmt: skip
    group, depth = integer(joins, "downsample_ratio", high=16, default=2) ** 2, integer(joins, "depth", high=16, default=2)
    wide = out * integer(joins, "mlp_ratio", high=64, default=1)
    sizes = [hidden * group, *[wide] * (depth - 1), out]
    steps = tuple(
        ProjectorLayer(f"layers.{2 * i}", sizes[i], sizes[i + 1], True, "gelu" if i < depth - 1 else "") for i in range(depth)
    )
    return VisionSpec(
        hidden=hidden, layers=(each,) * size(settings, "layers", 27), patch="patch_embed.proj", patch_bias=True, root=TOWER,
        kernel=(3, patch, patch), layer="blocks.{}.", places="pos_embed", stacks=1,
        rows=(size(settings, "image_size", 384) // patch) ** 2, leave=LayerNorm("norm", hidden, EPS),
        projector=ProjectorSpec(root="model.projector.", group=group, padded=True, join="channels", steps=steps),
        newline="model.image_newline", separator="model.view_separator",
    ), (f"{TOWER}attn_pool.",)  # fmt: skip
