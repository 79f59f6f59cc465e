"""GLM-4.1V's encoder: Qwen's order of patches, learned positions with bicubic interpolation, a merging convolution, a gated
merger. GLM-OCR's replaces those positions by QK-norm. GLM-5 Next's clips gates too."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, flag, integer, real
from thalweg.models.families.common import hidden_size
from thalweg.models.families.towers.common import act, sees_all, size, vision_config, with_defaults
from thalweg.models.spec import MLP, HeadNorm, Layer, LayerNorm, Norm, Norms, VisionSpec
from thalweg.models.spec.vision import ProjectorLayer, ProjectorSpec

EPS = 1e-5
OCR = {"hidden_size": 1024, "out_hidden_size": 1536, "num_heads": 16, "intermediate_size": 4096, "attention_bias": True}


def glm_ocr(config: Config) -> tuple[VisionSpec, tuple[str, ...]]:
    """The merger's inner size follows the channels of a pixel, the layers' that of the file."""
    config = with_defaults(config, **OCR)
    section = vision_config(config)
    inner, out, bias = (
        size(section, "intermediate_size", 4096),
        size(section, "out_hidden_size", 1536),
        flag(section, "attention_bias", True),
    )
    result, unread = glm4v(config, inner=out * size(section, "in_channels", 3))
    each = result.layers[0]
    mixer = replace(each.mixer, norm=HeadNorm(real(section, "rms_norm_eps", default=EPS)), out_bias=bias)  # type: ignore[type-var]
    each = replace(each, mixer=mixer, ffn=MLP(inner=inner, act=act(section, "hidden_act", "silu"), bias=bias))
    return replace(result, layers=(each,) * len(result.layers), places="", rows=0, embedded=None), unread


def glm5_next(config: Config) -> tuple[VisionSpec, tuple[str, ...]]:
    """GLM-OCR's with clipped gates, and with the merger's inner size in the file."""
    result, unread = glm_ocr(config)
    section = vision_config(config)
    limit, inner = real(section, "swiglu_limit", 1e-3, 1e6, default=10.0), size(section, "projection_intermediate_size", 10_240)
    down, first, gate, last = result.projector.steps
    steps = (down, first, replace(gate, outputs=inner, limit=limit), replace(last, inputs=inner))
    each = result.layers[0]
    assert isinstance(each.ffn, MLP)
    layers = (replace(each, ffn=replace(each.ffn, clamp=limit)),) * len(result.layers)
    return replace(result, layers=layers, projector=replace(result.projector, steps=steps)), unread


def glm4v(config: Config, inner: int = 0) -> tuple[VisionSpec, tuple[str, ...]]:
    """inner: of the merger; 0 = as the file says."""
    section = vision_config(config)
    hidden, patch, out = (
        size(section, key, default) for key, default in (("hidden_size", 1536), ("patch_size", 14), ("out_hidden_size", 4096))
    )
    e, merge = real(section, "rms_norm_eps", default=EPS), integer(section, "spatial_merge_size", default=2)
    gate, inner = act(section, "hidden_act", "silu"), inner or size(section, "intermediate_size", 13_696)
    each = Layer(
        sees_all(
            size(section, "num_heads", 12), hidden, turned=True, name="attn", fused="qkv", out="proj",
            bias=flag(section, "attention_bias", False),
        ),
        MLP(inner=out, act=gate),
        Norms(mixer=Norm("norm1", hidden, e), ffn=Norm("norm2", hidden, e)),
    )  # fmt: skip
    steps = (
        ProjectorLayer("downsample", hidden * merge**2, out, True, kernel=(hidden, merge, merge)),
        ProjectorLayer("merger.proj", out, out, act="gelu", norm=LayerNorm("merger.post_projection_norm", out, EPS)),
        ProjectorLayer("merger.gate_proj", out, inner, act=gate, up="merger.up_proj"),
        ProjectorLayer("merger.down_proj", inner, hidden_size(config)),
    )  # fmt: skip
    return VisionSpec(
        hidden=hidden, layers=(each,) * size(section, "depth", 24), patch="patch_embed.proj", patch_bias=True,
        kernel=(size(section, "in_channels", 3), size(section, "temporal_patch_size", 2), patch, patch), root="model.visual.",
        layer="blocks.{}.", places="embeddings.position_embedding", rows=(size(section, "image_size", 336) // patch) ** 2,
        embedded=Norm("post_conv_layernorm", hidden, e), leave=Norm("post_layernorm", hidden, e),
        projector=ProjectorSpec(root="model.visual.", group=merge**2, join="channels", steps=steps),
    ), ()  # fmt: skip
