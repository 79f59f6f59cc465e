"""PaddleOCR-VL: SigLIP encoder with two-axis RoPE, Ernie decoder with three-axis RoPE."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, flag, integer
from thalweg.models.families import llama
from thalweg.models.families.common import eps, hidden_size
from thalweg.models.families.multimodal import one_axis, seeing, with_axes
from thalweg.models.families.towers.clip import encoder
from thalweg.models.families.towers.common import size, vision_config, with_defaults
from thalweg.models.spec import Attention, LayerNorm, ModelSpec, Rope, VisionSpec
from thalweg.models.spec.vision import ProjectorLayer, ProjectorSpec

ROOT, JOINS = "model.visual.vision_model.", "model.mlp_AR."
NAMES = (("visual.", "model.visual."), ("mlp_AR.", JOINS))
SIGLIP = {
    "model_type": "paddleocr_vl_vision", "hidden_size": 1152, "intermediate_size": 4304, "patch_size": 14, "image_size": 384,
    "num_hidden_layers": 27, "num_attention_heads": 16,
}  # fmt: skip
UNREAD = (f"{ROOT}head.", f"{ROOT}embeddings.packing_position_embedding.")


def paddleocr_vl(config: Config) -> ModelSpec:
    bias = flag(config, "use_bias", False)
    config = {
        "rope_theta": 500_000.0, "tie_word_embeddings": True, "head_dim": 128, "num_key_value_heads": 2, "attention_bias": bias,
        "mlp_bias": bias, **config, "rms_norm_eps": eps(config, default=1e-5),
    }  # fmt: skip
    spec = with_axes(llama.llama(one_axis(config)), config, mixed=False)
    return seeing(spec, config, tower, replace=NAMES)


def tower(config: Config) -> tuple[VisionSpec, tuple[str, ...]]:
    config = with_defaults(config, **SIGLIP)
    section = vision_config(config)
    hidden, merge = size(section, "hidden_size", 1152), integer(section, "spatial_merge_size", default=2)
    wide = hidden * merge**2
    projector = ProjectorSpec(
        root=JOINS, group=merge**2, before=LayerNorm("pre_norm", hidden, 1e-5),
        steps=(ProjectorLayer("linear_1", wide, wide, True, "gelu"), ProjectorLayer("linear_2", wide, hidden_size(config),
        True)),
    )  # fmt: skip
    result, _ = encoder(config, size(section, "num_hidden_layers", 27), projector, normed=True)
    each = result.layers[0]
    assert isinstance(each.mixer, Attention)
    turned = Rope({"rope_type": "default", "rope_theta": 1e4}, each.mixer.head_dim, 1, given=True)
    each = replace(each, mixer=replace(each.mixer, rope=turned))
    return replace(result, root=ROOT, layers=(each,) * len(result.layers)), UNREAD
