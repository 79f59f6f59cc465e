"""Hy4-VL's encoder: SigLIP's layers over a stretched table of places, a merging convolution, a vector at each row's end."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, integer, real, text
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models.families.common import hidden_size
from thalweg.models.families.towers.common import act, sees_all, size, vision_config
from thalweg.models.spec import Layer, LayerNorm, Norm, Norms, UngatedMLP, VisionSpec
from thalweg.models.spec.vision import ProjectorLayer, ProjectorSpec

ROOT = "model.vision_tower."


def hy_v4_vl(config: Config) -> tuple[VisionSpec, tuple[str, ...]]:
    said, out = vision_config(config), hidden_size(config)
    hidden, patch, e = size(said, "hidden_size", 1536), size(said, "patch_size", 16), real(said, "rms_norm_eps", default=1e-5)
    if size(said, "out_hidden_size", 6144) != out:
        raise CheckpointError(f"config.json: vision_config: out_hidden_size: is not hidden_size, {out}")
    if text(said, "interpolate_mode", "bilinear") != "bilinear":
        raise UnsupportedModelError("config.json: vision_config: interpolate_mode: only bilinear is supported")
    merge, gelu = integer(said, "spatial_merge_size", high=16, default=2), act(said, "hidden_act", "gelu")
    wide = hidden * merge**2
    each = Layer(
        sees_all(size(said, "num_attention_heads", 16), hidden, bias=True, out_bias=True),
        UngatedMLP(
            inner=size(said, "intermediate_size", 6144), bias=True, act=gelu, up="dense_h_to_4h", down="dense_4h_to_h"
        ),
        Norms(mixer=LayerNorm("input_layernorm", hidden, e), ffn=LayerNorm("post_attention_layernorm", hidden, e)),
    )  # fmt: skip
    steps = (
        ProjectorLayer("proj.0", wide, wide, True, gelu, kernel=(hidden, merge, merge)),
        ProjectorLayer("proj.2", wide, out, True, kernel=(wide, 1, 1)),
    )  # fmt: skip
    projector = ProjectorSpec(
        root=f"{ROOT}perceive.", group=merge**2, join="channels", before=Norm("norm", hidden, e), steps=steps
    )  # fmt: skip
    return VisionSpec(
        hidden=hidden, layers=(each,) * size(said, "num_hidden_layers", 40), patch="embeddings.patch_embedding",
        patch_bias=True, kernel=(size(said, "num_channels", 3), patch, patch), root=ROOT, layer="layers.{}.",
        places="embeddings.position_embedding", rows=(size(said, "max_image_size", 2048) // patch) ** 2 + 1,
        newline=f"{ROOT}perceive.image_newline", projector=projector,
    ), ()  # fmt: skip
