"""C-RADIO: a ViT with learned vectors before the patches, and a table of places that is cropped after it was stretched to a
square."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, flag, integer, real
from thalweg.errors import UnsupportedModelError
from thalweg.media.processors.nemotron_vl import prefix_rows, table_side
from thalweg.models.families.towers.common import act, sees_all, size
from thalweg.models.spec import AnyNorm, Layer, LayerNorm, Norms, Scale, UngatedMLP, VisionSpec
from thalweg.models.spec.vision import ProjectorSpec

ROOT = "backbone.vision_tower."
NAMES = (("vision_model.radio_model.model.", ROOT),)
STORED = "vision_model.radio_model."


def radio(section: Config, projector: ProjectorSpec, normed: bool) -> tuple[VisionSpec, tuple[str, ...]]:
    """section: `canonical_vision`. normed: the output has a norm without parameters, which files do not contain."""
    hidden, patch, e = (
        size(section, "hidden_size", 1280),
        size(section, "patch_size", 16),
        real(section, "layer_norm_eps", default=1e-6),
    )
    if flag(section, "use_swiglu_ffn", False):
        raise UnsupportedModelError("config.json: vision_config: use_swiglu_ffn: true is not supported")
    bias, scaled = flag(section, "qkv_bias", True), "layerscale_value" in section
    inner = UngatedMLP(
        inner=int(hidden * real(section, "mlp_ratio", 0.01, 100, default=4.0)), bias=True,
        act=act(section, "hidden_act", "gelu")
    )  # fmt: skip
    heads = size(section, "num_attention_heads", 16)
    after: list[AnyNorm | None] = [Scale(f"layer_scale{i}.lambda1", hidden) if scaled else None for i in (1, 2)]
    each = Layer(
        sees_all(hidden=hidden, heads=heads, name="attn", fused="qkv", out="proj", bias=bias, out_bias=True), inner,
        Norms(
            mixer=LayerNorm("norm1", hidden, e), mixer_out=after[0], ffn=LayerNorm("norm2", hidden, e), ffn_out=after[1]
        ),
    )  # fmt: skip
    first, channels = prefix_rows(section), size(section, "num_channels", 3)
    frames = integer(section, "video_temporal_patch_size", high=16) if section.get("video_temporal_patch_size") else 0
    return VisionSpec(
        hidden=hidden, layers=(each,) * size(section, "num_hidden_layers", 32), projector=projector, root=ROOT,
        patch="patch_generator.embedder", kernel=(channels * patch**2,), layer="blocks.{}.",
        places="patch_generator.pos_embed", rows=first + table_side(section) ** 2, stacks=1,
        prefix=("patch_generator.cls_token.token", first),
        video=("patch_generator.video_embedder", frames * channels * patch**2) if frames else ("", 0),
        leave=LayerNorm("norm", hidden, e, bias=False, weight=False) if normed else None,
    ), (
        *(() if frames else (f"{ROOT}patch_generator.video_embedder.",)), f"{STORED}input_conditioner.",
        f"{STORED}summary_idxs", "vision_final_layernorm.",
    )  # fmt: skip
