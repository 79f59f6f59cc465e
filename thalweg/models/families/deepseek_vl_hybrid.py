"""DeepSeek-VL (7B): SAM encoder of a large square, SigLIP encoder of a smaller one, Llama decoder."""

from __future__ import annotations

from dataclasses import fields

from thalweg.checkpoint.config import BESIDE, Config
from thalweg.errors import UnsupportedModelError
from thalweg.media.processors.base import edge
from thalweg.models.families.common import hidden_size
from thalweg.models.families.deepseek_vl import SIGLIP
from thalweg.models.families.multimodal import is_blind, of_kind, seeing
from thalweg.models.families.towers.clip import encoder
from thalweg.models.families.towers.common import outer_config, size, vision_config
from thalweg.models.families.towers.sam import sam
from thalweg.models.spec import ModelSpec, SamPairSpec
from thalweg.models.spec.vision import ProjectorLayer, ProjectorSpec

SAM, ALIGNER = "model.high_res_vision_model.vision_encoder.", "model.aligner."
CONV = "model.high_res_vision_proj.conv"
NAMES = (("model.vision_model.", "model.vision_tower."),)
UNSEEN = ("model.high_res_vision_", ALIGNER)


def deepseek_vl_hybrid(config: Config) -> ModelSpec:
    tied = outer_config(config).get("tie_word_embeddings", True)
    spec = of_kind({**config, "tie_word_embeddings": tied}, "llama")
    return seeing(spec, config, tower, replace=NAMES, skip=UNSEEN if is_blind(config) else ())


def tower(config: Config) -> tuple[SamPairSpec, tuple[str, ...]]:
    """All layers of both, and the norm behind SigLIP's."""
    around, out = outer_config(config), hidden_size(config)
    section, high = {**SIGLIP, **vision_config(config)}, around.get("high_res_vision_config")
    high = high if isinstance(high, dict) else {}
    patch, grid = edge(section, "patch_size", 16), edge(section, "image_size", 224) // edge(section, "patch_size", 16)
    inner = {**config, BESIDE: {**around, "vision_config": section}}
    low, unread = encoder(inner, size(section, "num_hidden_layers", 12), ProjectorSpec(root="", steps=()), normed=True)
    channels = size(high, "output_channels", 256)
    projector, proj = (
        ProjectorSpec(root=ALIGNER, steps=(ProjectorLayer("proj", out, out, True),)),
        "model.high_res_vision_proj.conv",
    )
    convs = ((f"{proj}1", 2 * channels), (f"{proj}2", 4 * channels))
    result = sam(high, projector=projector, convs=convs, root=SAM)
    if result.patch != patch:
        raise UnsupportedModelError("config.json: vision_config, high_res_vision_config: patch_size: must be equal")
    return SamPairSpec(
        **{each.name: getattr(result, each.name) for each in fields(result)}, low=low, tap=_first(high, result.layers),
        second="model.high_res_vision_neck.", weigh="model.high_res_vision_alpha", stretched=4 * grid,
        halves=(f"{ALIGNER}high_res_vision_proj", f"{ALIGNER}vision_proj"), joined=out,
    ), unread  # fmt: skip


def _first(section: Config, layers: int) -> int:
    """The first layer that sees a whole view."""
    found = section.get("global_attn_indexes", [2])
    if not isinstance(found, list) or not found or type(found[0]) is not int or not 0 <= found[0] < layers:
        raise UnsupportedModelError(f"config.json: high_res_vision_config: global_attn_indexes: {found!r:.40} names no layer")
    return found[0]
