"""Eagle 2.5: SigLIP encoder with tiles, merged patches, Qwen2 or Llama decoder."""

from __future__ import annotations

from thalweg.checkpoint.config import BESIDE, Config, flag, integer
from thalweg.errors import UnsupportedModelError
from thalweg.media.processors.base import shuffle
from thalweg.models.families.common import hidden_size
from thalweg.models.families.multimodal import of_kind, seeing
from thalweg.models.families.towers.clip import encoder
from thalweg.models.families.towers.common import feature_layers, outer_config, size, vision_config, with_defaults
from thalweg.models.spec import LayerNorm, ModelSpec, VisionSpec
from thalweg.models.spec.vision import ProjectorLayer, ProjectorSpec

EPS = 1e-5
ROOT = "model.multi_modal_projector."
NAMES = (("vision_model.vision_model.", "model.vision_tower."), ("mlp1.", ROOT))


def eagle2_5(config: Config) -> ModelSpec:
    return seeing(of_kind(config, "qwen2", ("llama", "qwen2")), config, tower, replace=NAMES)


def tower(config: Config) -> tuple[VisionSpec, tuple[str, ...]]:
    config = with_defaults(config, model_type="siglip_vision_model")
    around, section = outer_config(config), vision_config(config)
    if integer(around, "mlp_connector_layers", default=2) != 2 or not flag(around, "use_pixel_shuffle", True):
        raise UnsupportedModelError(
            "config.json: mlp_connector_layers, use_pixel_shuffle: only 2 layers of merged patches are supported"
        )
    layer = integer(around, "select_layer", low=-1000, high=1000, default=-1)
    group, layers = shuffle(around, "downsample_ratio") ** 2, size(section, "num_hidden_layers", 27)
    (run,) = feature_layers({**config, BESIDE: {**around, "vision_feature_layer": layer}}, layers, -1)
    wide, out = group * size(section, "hidden_size", 1152), hidden_size(config)
    projector = ProjectorSpec(
        root=ROOT, group=group, after=(LayerNorm("0", wide, EPS),),
        steps=(ProjectorLayer("1", wide, out, True, "gelu"), ProjectorLayer("3", out, out, True)),
    )  # fmt: skip
    return encoder(config, run, projector, normed=layer == -1)
