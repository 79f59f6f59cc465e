"""InternVL's encoder: layers with a learned scale per value, tiles encoded separately, four patches to a vector."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, flag, real, text
from thalweg.errors import UnsupportedModelError
from thalweg.media.processors.base import edge
from thalweg.media.processors.tiles import merge_size
from thalweg.models.families.common import hidden_size
from thalweg.models.families.towers.common import act, feature_layers, outer_config, sees_all, size, two_layers, vision_config
from thalweg.models.spec import AnyNorm, HeadNorm, Layer, LayerNorm, Norm, Norms, Scale, UngatedMLP, VisionSpec

EPS = 1e-5
"""Of the projector's norm."""


def internvl(config: Config) -> tuple[VisionSpec, tuple[str, ...]]:
    """The encoder, and prefixes of tensors that it leaves unread."""
    section = vision_config(config)
    hidden, layers = size(section, "hidden_size", 1024), size(section, "num_hidden_layers", 24)
    e, side, patch = (
        real(section, "layer_norm_eps", default=1e-6),
        edge(section, "image_size", 448),
        edge(section, "patch_size", 14),
    )
    if not flag(section, "use_absolute_position_embeddings", True) or flag(section, "use_mask_token", False):
        raise UnsupportedModelError("config.json: vision_config: fixed position embeddings and masks are not supported")
    bias = flag(section, "attention_bias", False)

    def norm(name: str) -> AnyNorm:
        result: type[Norm | LayerNorm] = Norm if text(section, "norm_type", "layer_norm") == "rms_norm" else LayerNorm
        return result(name, hidden, e)

    each = Layer(
        sees_all(
            size(section, "num_attention_heads", 16), hidden, bias=bias, out_bias=True, out="projection_layer",
            name="attention",
            norm=HeadNorm(1e-6, whole=True) if flag(section, "use_qk_norm", False) else None,
        ),
        UngatedMLP(inner=size(section, "intermediate_size", 4096), bias=True, act=act(section, "hidden_act", "gelu")),
        Norms(
            mixer=norm("layernorm_before"), mixer_out=Scale("lambda_1", hidden), ffn=norm("layernorm_after"),
            ffn_out=Scale("lambda_2", hidden),
        ),
    )  # fmt: skip
    group, (run, *more) = merge_size(config) ** 2, feature_layers(config, layers, -1)
    if more:
        raise UnsupportedModelError("config.json: vision_feature_layer: this version supports one layer of this encoder")
    projector = two_layers(
        config, hidden * group, hidden_size(config), True, group=group, after=(LayerNorm("layer_norm", hidden * group, EPS),)
    )
    normed = not flag(section, "use_mean_pooling", True) and outer_config(config).get("vision_feature_layer", -1) == -1
    result = VisionSpec(
        hidden=hidden, layers=(each,) * run, projector=projector, patch="embeddings.patch_embeddings.projection",
        kernel=(size(section, "num_channels", 3), patch, patch), patch_bias=True, layer="encoder.layer.{}.",
        whole="embeddings.cls_token", places="embeddings.position_embeddings", rows=(side // patch) ** 2 + 1, stacks=1,
        leave=LayerNorm("layernorm", hidden, e) if normed else None,
    )  # fmt: skip
    unread = [f"{result.root}{result.layer.format(i)}" for i in range(run, layers)]
    return result, tuple(unread if normed else [*unread, f"{result.root}layernorm."])
