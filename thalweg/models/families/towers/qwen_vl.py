"""Qwen's encoders: with rotary positions in 2, windows and gated parts in 2.5, stretched places and taps of layers in
3."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.config import Config, integer, real
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models.families.common import hidden_size
from thalweg.models.families.towers.common import act, sees_all, size, vision_config
from thalweg.models.spec import MLP, AnyNorm, Attention, Layer, LayerNorm, Norm, Norms, UngatedMLP, VisionSpec
from thalweg.models.spec.vision import ProjectorLayer, ProjectorSpec

EPS = 1e-6
ROOT = "model.visual."


def qwen2_vl(config: Config) -> tuple[VisionSpec, tuple[str, ...]]:
    """`hidden_size` there is the encoder's output size."""
    section = vision_config(config)
    hidden, depth = size(section, "embed_dim", 1280), size(section, "depth", 32)
    wider = real(section, "mlp_ratio", 0.01, 100, default=4.0)
    inner = UngatedMLP(inner=int(hidden * wider), act=act(section, "hidden_act", "quick_gelu"), bias=True)
    norms = Norms(mixer=LayerNorm("norm1", hidden, EPS), ffn=LayerNorm("norm2", hidden, EPS))
    group = integer(section, "spatial_merge_size", default=2) ** 2
    wide = hidden * group
    projector = ProjectorSpec(
        root=f"{ROOT}merger.", group=group, before=LayerNorm("ln_q", hidden, EPS),
        steps=(
            ProjectorLayer("mlp.0", wide, wide, True, "gelu"),
            ProjectorLayer("mlp.2", wide, _out(config, {"out_hidden_size": section.get("hidden_size")}), True),
        ),
    )  # fmt: skip
    return _vision(config, section, hidden, depth, Layer(_attention(section, hidden), inner, norms), projector, False), ()


def qwen2_5_vl(config: Config) -> tuple[VisionSpec, tuple[str, ...]]:
    section = vision_config(config)
    hidden, depth = size(section, "hidden_size", 1280), size(section, "depth", 32)
    inner = MLP(inner=size(section, "intermediate_size", 3420), act=act(section, "hidden_act", "silu"), bias=True)
    norms = Norms(mixer=Norm("norm1", hidden, EPS), ffn=Norm("norm2", hidden, EPS))
    group = integer(section, "spatial_merge_size", default=2) ** 2
    wide = hidden * group
    full = read_layers(section, "fullatt_block_indexes", (7, 15, 23, 31), depth)
    projector = ProjectorSpec(
        root=f"{ROOT}merger.", group=group, before=Norm("ln_q", hidden, EPS),
        steps=(ProjectorLayer("mlp.0", wide, wide, True, "gelu"), ProjectorLayer("mlp.2", wide, _out(config, section), True)),
    )  # fmt: skip
    return _vision(config, section, hidden, depth, Layer(_attention(section, hidden), inner, norms), projector, False,
                   windowed=frozenset(range(depth)) - frozenset(full)), ()  # fmt: skip


def qwen3_5(config: Config) -> tuple[VisionSpec, tuple[str, ...]]:
    """The same without taps."""
    return qwen3_vl(config, tapped=False)


def qwen3_vl(config: Config, tapped: bool = True) -> tuple[VisionSpec, tuple[str, ...]]:
    section = vision_config(config)
    hidden, depth = size(section, "hidden_size", 1152), size(section, "depth", 27)
    inner = UngatedMLP(
        inner=size(section, "intermediate_size", 4304), act=act(section, "hidden_act", "gelu_pytorch_tanh"), bias=True,
        up="linear_fc1", down="linear_fc2",
    )  # fmt: skip
    norms = Norms(mixer=LayerNorm("norm1", hidden, EPS), ffn=LayerNorm("norm2", hidden, EPS))
    group = integer(section, "spatial_merge_size", default=2) ** 2
    wide, out = hidden * group, _out(config, section)

    def merger(root: str, before: AnyNorm | None, *after: AnyNorm) -> ProjectorSpec:
        steps = (ProjectorLayer("linear_fc1", wide, wide, True, "gelu"), ProjectorLayer("linear_fc2", wide, out, True))
        return ProjectorSpec(root=f"{ROOT}{root}.", group=group, before=before, after=after, steps=steps)

    taps = read_layers(section, "deepstack_visual_indexes", (8, 16, 24), depth) if tapped else ()
    return _vision(
        config, section, hidden, depth, Layer(_attention(section, hidden), inner, norms),
        merger("merger", LayerNorm("norm", hidden, EPS)), True,
        places="pos_embed", rows=size(section, "num_position_embeddings", 2304),
        taps=tuple(
            (layer, merger(f"deepstack_merger_list.{i}", None, LayerNorm("norm", wide, EPS))) for i, layer in enumerate(taps)
        ),
    ), ()  # fmt: skip


def _attention(section: Config, hidden: int) -> Attention:
    return sees_all(
        size(section, "num_heads", 16), hidden, turned=True, name="attn", fused="qkv", out="proj", bias=True, out_bias=True
    )


def _vision(
    config: Config, section: Config, hidden: int, depth: int, layer: Layer, projector: ProjectorSpec, bias: bool, **more: Any
) -> VisionSpec:
    patch = size(section, "patch_size", 14 if not bias else 16)
    return VisionSpec(
        hidden=hidden, layers=(layer,) * depth, projector=projector, patch="patch_embed.proj", patch_bias=bias,
        kernel=(size(section, "in_channels", 3), size(section, "temporal_patch_size", 2), patch, patch),
        root=ROOT, layer="blocks.{}.", **more,
    )  # fmt: skip


def _out(config: Config, section: Config) -> int:
    out = size(section, "out_hidden_size", hidden_size(config))
    if out != hidden_size(config):
        raise CheckpointError(f"config.json: vision_config: out_hidden_size: {out} is not hidden_size, {hidden_size(config)}")
    return out


def read_layers(section: Config, key: str, default: tuple[int, ...], depth: int) -> tuple[int, ...]:
    """Numbers of layers, from 0."""
    found = section.get(key)
    found = list(default) if found is None else found
    if not isinstance(found, list) or not all(type(i) is int and 0 <= i < depth for i in found):
        raise UnsupportedModelError(f"config.json: vision_config: {key}: must be a list of layers below {depth}")
    return tuple(found)
