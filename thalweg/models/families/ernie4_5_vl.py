"""Ernie 4.5 VL, for text and images: encoder with two-axis RoPE, separate experts for tokens of text and of images, RoPE whose
rows and columns take turns among the first frequencies."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, flag, integer, real
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models.families.common import act, decoder, eps, head_size, hidden_size, layer_count, mlp, pre_norms
from thalweg.models.families.ernie4_5 import MODULE, defaults, heads
from thalweg.models.families.mixtures import sparse
from thalweg.models.families.multimodal import is_blind, one_axis, read_sections, seeing
from thalweg.models.families.towers import common as shared
from thalweg.models.spec import (
    Attention,
    Layer,
    LayerNorm,
    ModalityMoE,
    ModelSpec,
    MoE,
    Norm,
    Norms,
    UngatedMLP,
    VisionSpec,
)
from thalweg.models.spec.vision import ProjectorLayer, ProjectorSpec

TOWER, RESAMPLER = "model.vision_tower.", "model.resampler_model."
NAMES = (("vision_model.", TOWER), ("model.vision_model.", TOWER))
INSIDE = ((".mlp.gate.weight_1", ".mlp.gate_1.weight"),)
IDS = {
    "image_token_id": 100_295, "image_start_token_id": 101_304, "image_end_token_id": 101_305, "video_token_id": 103_367,
    "video_start_token_id": 101_306, "video_end_token_id": 101_307,
}  # fmt: skip
"""Tokens that the experts of images compute."""
OLDER = {"image_token_id": "im_patch_id"}
"""Keys of the authors."""
KINDS = 2
"""Text and images."""


def ernie4_5_vl(config: Config) -> ModelSpec:
    config = defaults({"num_key_value_heads": 4, **config})
    plain, around = one_axis(config), shared.outer_config(config)
    mixer = heads(plain, head_size(plain))
    if not is_blind(config):
        mixer = _with_axes(config, mixer)
    moe, dense, norms = _mixture(config, around), mlp(config, bias=flag(config, "use_bias", False)), pre_norms(config)
    layers = [Layer(mixer, moe if mixed else dense, norms) for mixed in _find_mixtures(config)]
    tied = flag(around, "tie_word_embeddings", flag(config, "tie_word_embeddings", True))
    spec = decoder(config, layers, tied=tied)
    unread = (MODULE, *((RESAMPLER, TOWER) if is_blind(config) else ()))
    return seeing(spec, config, _tower, replace=NAMES, inside=INSIDE, skip=unread)


def _with_axes(config: Config, mixer: Attention) -> Attention:
    """`mrope_section` counts rows, columns and time."""
    assert mixer.rope is not None
    half = mixer.rope.dim // 2
    rows, columns, time = read_sections(config, mixer.rope.dim, mixed=False, absent=[22, 22, half - 44])
    if rows != columns:
        raise UnsupportedModelError("config.json: mrope_section: rows and columns must have as many frequencies")
    order = (*(1 + i % 2 for i in range(rows + columns)), *[0] * time)
    return replace(mixer, rope=replace(mixer.rope, sections=(time, rows, columns), order=order))


def _read_pair(config: Config, key: str, default: int) -> tuple[int, int]:
    """A number of text and of images: a list of both, or one number."""
    section = config.get(key)
    if isinstance(section, list):
        if len(section) != KINDS:
            raise CheckpointError(f"config.json: {key}: must have a number for text and one for images, not {section!r:.60}")
        first, second = (integer({key: each}, key, low=0, default=default) for each in section)
        return first, second
    number = integer(config, key, low=0, default=default)
    return number, number


def _find_mixtures(config: Config) -> list[bool]:
    """Of each layer: does it have a mixture?"""
    count = layer_count(config)
    if config.get("mlp_layer_types") is not None:
        return sparse(config, 1)
    first, other = _read_pair(config, "moe_layer_start_index", 1)
    every = integer(config, "moe_layer_interval", default=1)
    last, end = (min(each, count - 1) for each in _read_pair({"n": config.get("moe_layer_end_index")}, "n", count - 1))
    if first != other or last != end:
        raise UnsupportedModelError(
            "config.json: moe_layer_start_index, moe_layer_end_index: must be the same for text and images"
        )
    return [(i + 1) % every == 0 and first <= i <= last for i in range(count)]


def _mixture(config: Config, around: Config) -> ModalityMoE:
    experts, same = _read_pair(config, "moe_num_experts", 64)
    if experts != same:
        raise UnsupportedModelError("config.json: moe_num_experts: must be the same for text and images")
    wide = config.get("moe_intermediate_size")
    inner = _read_pair({"moe_intermediate_size": [1536, 512] if wide is None else wide}, "moe_intermediate_size", 1536)
    parts = [
        MoE(
            experts=experts, top_k=integer(config, "moe_k", high=experts, default=6), inner=inner[i], act=act(config),
            renormalise=True, correction="moe_statics.e_score_correction_bias", correction_rows=KINDS, correction_row=i,
            router=router, router_turned=True, first_expert=i * experts,
        )
        for i, router in enumerate(("gate", "gate_1"))
    ]  # fmt: skip
    many = integer(config, "moe_num_shared_experts", low=0, default=2)
    ids = tuple(
        integer(around, OLDER[k] if k in OLDER and around.get(k) is None else k, low=0, default=n) for k, n in IDS.items()
    )
    bias = flag(config, "use_bias", False)
    one = mlp(config, inner=many * inner[0], name="shared_experts", bias=bias) if many else None
    return ModalityMoE(text=parts[0], image=parts[1], ids=ids, shared=one)


def _tower(config: Config) -> tuple[VisionSpec, tuple[str, ...]]:
    section, out = shared.vision_config(config), hidden_size(config)
    hidden, patch, e = (
        shared.size(section, "hidden_size", 1280),
        shared.size(section, "patch_size", 14),
        real(section, "rms_norm_eps", default=1e-6),
    )
    if integer(section, "temporal_merge_size", default=2) != KINDS:
        raise UnsupportedModelError("config.json: vision_config: temporal_merge_size: only 2 is supported")
    each = Layer(
        shared.sees_all(
            shared.size(section, "num_heads", 16), hidden, turned=True, name="attn", fused="qkv", out="proj", bias=True,
            out_bias=True,
        ),
        UngatedMLP(
            inner=shared.size(section, "intermediate_size", 5120), bias=True,
            act=shared.act(section, "hidden_act", "quick_gelu")
        ),
        Norms(mixer=LayerNorm("norm1", hidden, e), ffn=LayerNorm("norm2", hidden, e)),
    )  # fmt: skip
    group = integer(section, "spatial_merge_size", high=16, default=2) ** 2
    wide = hidden * group
    steps = (
        ProjectorLayer("spatial_linear.0", wide, wide, True, "gelu"),
        ProjectorLayer("spatial_linear.2", wide, wide, True, norm=LayerNorm("spatial_linear.3", wide, e)),
        ProjectorLayer("temporal_linear.0", 2 * wide, wide, True, "gelu", copies=2),
        ProjectorLayer("temporal_linear.2", wide, wide, True, norm=LayerNorm("temporal_linear.3", wide, e)),
        ProjectorLayer("mlp", wide, out, True, norm=Norm("after_norm", out, eps(config))),
    )  # fmt: skip
    return VisionSpec(
        hidden=hidden, layers=(each,) * shared.size(section, "depth", 32), patch="patch_embed.proj", root=TOWER,
        kernel=(shared.size(section, "in_channels", 3) * patch**2,), layer="blocks.{}.", leave=LayerNorm("ln", hidden, e),
        projector=ProjectorSpec(root=RESAMPLER, group=group, steps=steps),
    ), ()  # fmt: skip
