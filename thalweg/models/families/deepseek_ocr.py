"""DeepSeek-OCR: SAM encoder read by CLIP's layers, mixture-of-experts decoder with Llama's attention."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, flag, integer, section, text
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models.families.common import hidden_size, layer_count
from thalweg.models.families.deepseek_ocr2 import INSIDE, decode_layers
from thalweg.models.families.multimodal import seeing
from thalweg.models.families.towers.common import size, vision_config
from thalweg.models.families.towers.sam import sam
from thalweg.models.spec import ClipReaderSpec, ModelSpec, SamSpec
from thalweg.models.spec.vision import ProjectorLayer, ProjectorSpec

SAM, CLIP = "sam_vit_b", "clip-l-14-224"
"""Keys of `vision_config.width`."""
ROOT, EYE = "model.vision_tower.sam_encoder.", "model.vision_model."


def deepseek_ocr(config: Config) -> ModelSpec:
    if flag(config, "use_mla", False):
        raise UnsupportedModelError("config.json: use_mla: latent attention is not supported in this family")
    dense, count = integer(config, "first_k_dense_replace", low=0, default=1), layer_count(config)
    kinds = ["dense" if i < dense else "sparse" for i in range(count)]
    spec = decode_layers({**config, "mlp_layer_types": kinds, "head_dim": None}, tied=False)
    return seeing(spec, config, tower, inside=INSIDE)


def tower(config: Config) -> tuple[SamSpec, tuple[str, ...]]:
    settings = vision_config(config)
    widths = settings.get("width")
    eye, reads = (widths.get(key) if isinstance(widths, dict) else None for key in (SAM, CLIP))
    if not isinstance(eye, dict) or not isinstance(reads, dict):
        raise CheckpointError(f"config.json: vision_config: width: must have the parts {SAM} and {CLIP}")
    kind = text(section(config, "projector_config"), "projector_type", "linear")
    sizes = eye.get("downsample_channels", [512, 1024])
    width = size(reads, "width", 1024)
    if kind != "linear" or not isinstance(sizes, list) or len(sizes) != 2 or type(sizes[0]) is not int or sizes[1] != width:
        raise UnsupportedModelError(
            "config.json: projector_type: must be linear, and the last of downsample_channels must be the width of "
            f"{CLIP}, {width}"
        )
    spelt = {
        "hidden_size": size(eye, "width", 768), "num_hidden_layers": size(eye, "layers", 12),
        "num_attention_heads": size(eye, "heads", 12), "image_size": settings.get("image_size", 1024),
        "global_attn_indexes": eye.get("global_attn_indexes", [2, 5, 8, 11]), **PATCHES, **eye,
    }  # fmt: skip
    reader = ClipReaderSpec(
        root=EYE, hidden=width, layers=size(reads, "layers", 24), heads=size(reads, "heads", 16), inner=4 * width,
        grid=size(reads, "image_size", 224) // size(reads, "patch_size", 14),
    )  # fmt: skip
    step = ProjectorLayer("multi_modal_projector", 2 * width, hidden_size(config), True)
    result = sam(
        spelt, tile=size(spelt, "image_size", 1024) * 5 // 8, root=ROOT, reader=reader,
        projector=ProjectorSpec(root="model.", steps=(step,)), learned=("model.image_newline", "model.view_separator"),
        convs=((f"{ROOT}proj.conv1", sizes[0]), (f"{ROOT}proj.conv2", sizes[1])),
    )  # fmt: skip
    return result, (f"{EYE}embeddings.patch_embedding.",)


PATCHES = {"patch_size": 16, "window_size": 14}
