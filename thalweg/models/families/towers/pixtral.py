"""Pixtral's encoder: rotary positions of rows and columns, gated feed-forward parts, in Mistral 3 merged patches."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, integer
from thalweg.errors import UnsupportedModelError
from thalweg.models.families.common import eps, hidden_size
from thalweg.models.families.towers.common import act, feature_layers, outer_config, sees_all, size, two_layers, vision_config
from thalweg.models.spec import MLP, Layer, Norm, Norms, VisionSpec
from thalweg.models.spec.vision import ProjectorLayer

EPS = 1e-5


def pixtral(config: Config, merges: bool) -> tuple[VisionSpec, tuple[str, ...]]:
    """merges: patches are normed and merged before they are projected."""
    section = vision_config(config)
    hidden, patch, heads = (
        size(section, key, default) for key, default in (("hidden_size", 1024), ("patch_size", 16), ("num_attention_heads", 16))
    )
    layers = size(section, "num_hidden_layers", 24)
    each = Layer(
        sees_all(heads, hidden, turned=True, head_dim=size(section, "head_dim", hidden // heads), name="attention"),
        MLP(
            inner=size(section, "intermediate_size", 4096), act=act(section, "hidden_act", "gelu"),
            name="feed_forward",
        ),
        Norms(mixer=Norm("attention_norm", hidden, EPS), ffn=Norm("ffn_norm", hidden, EPS)),
    )  # fmt: skip
    if merges:
        merge = integer(outer_config(config), "spatial_merge_size", default=2)
        projector = two_layers(
            config, hidden, hidden_size(config), False, group=merge**2, join="channels",
            before=Norm("norm", hidden, eps(config)),
            first=ProjectorLayer("patch_merger.merging_layer", hidden * merge**2, hidden),
        )  # fmt: skip
    else:
        projector = two_layers(config, hidden, hidden_size(config), True)
    run, *more = feature_layers(config, layers, -1)
    if more:
        raise UnsupportedModelError("config.json: vision_feature_layer: this version supports one layer of this encoder")
    result = VisionSpec(
        hidden=hidden, layers=(each,) * run, projector=projector, patch="patch_conv",
        kernel=(size(section, "num_channels", 3), patch, patch), layer="transformer.layers.{}.",
        enter=Norm("ln_pre", hidden, EPS),
    )  # fmt: skip
    return result, tuple(f"{result.root}{result.layer.format(i)}" for i in range(run, layers))
