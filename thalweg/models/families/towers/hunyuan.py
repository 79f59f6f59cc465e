"""HunYuan-VL's and Hy4-VL's encoder: SigLIP's layers over a stretched table of places, a merging convolution, a vector at each
row's end."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, integer, real, text
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models.families.common import hidden_size
from thalweg.models.families.towers.common import act, sees_all, size, vision_config
from thalweg.models.spec import Layer, LayerNorm, Norm, Norms, UngatedMLP, VisionSpec
from thalweg.models.spec.vision import ProjectorLayer, ProjectorSpec

ROOT = "model.vision_tower."


def hunyuan_vl(config: Config) -> tuple[VisionSpec, tuple[str, ...]]:
    """Vectors at the ends of rows enter before the last layer. Those around an image do not pass through layers."""
    section, out, at = vision_config(config), hidden_size(config), f"{ROOT}perceive."
    hidden, e = size(section, "hidden_size", 1152), _eps(section)
    merge, gelu = integer(section, "spatial_merge_size", high=16, default=2), act(section, "hidden_act", "gelu")
    steps = (
        ProjectorLayer("proj.0", hidden * merge**2, 2 * hidden, True, gelu, kernel=(hidden, merge, merge)),
        ProjectorLayer("proj.2", 2 * hidden, 4 * hidden, True, kernel=(2 * hidden, 1, 1)),
        ProjectorLayer("mlp", 4 * hidden, out, True),
    )  # fmt: skip
    projector = ProjectorSpec(
        root=at, group=merge**2, join="channels", before=Norm("before_rms", hidden, e), steps=steps,
        learned=(("image_newline", (4 * hidden,)), ("image_begin", (out,)), ("image_end", (out,))), entries=(2, 3, 3),
        leave=Norm("after_rms", out, e),
    )  # fmt: skip
    defaults = {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27}
    return _encoder({**defaults, **section}, projector), (f"{at}image_sep",)


def hy_v4_vl(config: Config) -> tuple[VisionSpec, tuple[str, ...]]:
    section, out = vision_config(config), hidden_size(config)
    hidden, e = size(section, "hidden_size", 1536), _eps(section)
    if size(section, "out_hidden_size", 6144) != out:
        raise CheckpointError(f"config.json: vision_config: out_hidden_size: is not hidden_size, {out}")
    merge, gelu = integer(section, "spatial_merge_size", high=16, default=2), act(section, "hidden_act", "gelu")
    wide = hidden * merge**2
    steps = (
        ProjectorLayer("proj.0", wide, wide, True, gelu, kernel=(hidden, merge, merge)),
        ProjectorLayer("proj.2", wide, out, True, kernel=(wide, 1, 1)),
    )  # fmt: skip
    projector = ProjectorSpec(
        root=f"{ROOT}perceive.", group=merge**2, join="channels", before=Norm("norm", hidden, e), steps=steps
    )  # fmt: skip
    defaults = {"hidden_size": 1536, "intermediate_size": 6144, "num_hidden_layers": 40}
    return replace(_encoder({**defaults, **section}, projector), newline=f"{ROOT}perceive.image_newline"), ()


def _encoder(section: Config, projector: ProjectorSpec) -> VisionSpec:
    hidden, patch, e = size(section, "hidden_size", 1152), size(section, "patch_size", 16), _eps(section)
    if text(section, "interpolate_mode", "bilinear") != "bilinear":
        raise UnsupportedModelError("config.json: vision_config: interpolate_mode: only bilinear is supported")
    each = Layer(
        sees_all(size(section, "num_attention_heads", 16), hidden, bias=True, out_bias=True),
        UngatedMLP(
            inner=size(section, "intermediate_size", 4304), bias=True, act=act(section, "hidden_act", "gelu"),
            up="dense_h_to_4h",
            down="dense_4h_to_h",
        ),
        Norms(mixer=LayerNorm("input_layernorm", hidden, e), ffn=LayerNorm("post_attention_layernorm", hidden, e)),
    )  # fmt: skip
    return VisionSpec(
        hidden=hidden, layers=(each,) * size(section, "num_hidden_layers", 27), patch="embeddings.patch_embedding",
        patch_bias=True, kernel=(size(section, "num_channels", 3), patch, patch), root=ROOT, layer="layers.{}.",
        places="embeddings.position_embedding", rows=(size(section, "max_image_size", 2048) // patch) ** 2 + 1,
        projector=projector,
    )  # fmt: skip


def _eps(section: Config) -> float:
    return real(section, "rms_norm_eps", default=1e-5)
