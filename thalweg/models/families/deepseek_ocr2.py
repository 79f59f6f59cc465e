"""DeepSeek-OCR 2: SAM encoder, learned queries read by decoder layers, mixture-of-experts decoder with Llama's attention."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.config import BESIDE, Config, flag, integer, real, section, text
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models.families.common import attention, decoder, hidden_size, layer_count, mlp, pre_norms
from thalweg.models.families.mixtures import mixture, sparse
from thalweg.models.families.multimodal import seeing
from thalweg.models.families.towers.common import outer_config, size, vision_config
from thalweg.models.families.towers.sam import sam
from thalweg.models.spec import Layer, ModelSpec, QueryEncoderSpec, SamSpec
from thalweg.models.spec.vision import ProjectorLayer, ProjectorSpec

ROOT = "model.vision_tower."
TILE = 768
"""Pixels of an edge of a tile."""
QUERIES = ((144, f"{ROOT}query_768_resolution"), (256, f"{ROOT}query_1024_resolution"))
INSIDE = (
    ("sam_model.", "vision_tower.sam_encoder."), ("sam_encoder.blocks.", "sam_encoder.layers."),
    ("sam_encoder.patch_embed.proj.", "sam_encoder.patch_embed.projection."), (".norm1.", ".layer_norm1."),
    (".norm2.", ".layer_norm2."), (".neck.0.", ".neck.conv1."), (".neck.1.", ".neck.layer_norm1."),
    (".neck.2.", ".neck.conv2."), (".neck.3.", ".neck.layer_norm2."), ("sam_encoder.net_2.", "sam_encoder.proj.conv1."),
    ("sam_encoder.net_3.", "sam_encoder.proj.conv2."), ("qwen2_model.model.model.", "vision_tower.vision_encoder."),
    ("qwen2_model.query_768.", "vision_tower.query_768_resolution."),
    ("qwen2_model.query_1024.", "vision_tower.query_1024_resolution."),
    ("model.projector.layers.", "model.multi_modal_projector."), ("view_seperator", "view_separator"),
)  # fmt: skip
"""Names of the authors' files, and of transformers'."""
SAM, QWEN = "sam_vit_b", "qwen2-0-5b"
"""Keys of `vision_config.width`."""
QWEN_SIZES = {
    "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2, "intermediate_size": 4864,
    "rms_norm_eps": 1e-6, "rope_theta": 1e6,
}  # fmt: skip
"""Those of Qwen2-0.5B, which the authors' code has."""
SHRUNK = 4
"""Patches along each edge of one vector."""


def deepseek_ocr2(config: Config) -> ModelSpec:
    tied = outer_config(config).get("tie_word_embeddings", False)
    return seeing(decode_layers(config, tied), config, tower, inside=INSIDE)


def deepseek_ocr2_chat(config: Config) -> ModelSpec:
    """The format of the authors, which names the width of the second encoder only."""
    text: Any = config.get("language_config") or {}
    if not isinstance(text, dict):
        raise CheckpointError("config.json: language_config: must be an object")
    config = {**text, **config}
    if flag(config, "use_mla", False):
        raise UnsupportedModelError("config.json: use_mla: latent attention is not supported in this family")
    dense, count = integer(config, "first_k_dense_replace", low=0, default=1), layer_count(config)
    kinds = ["dense" if i < dense else "sparse" for i in range(count)]
    settings = vision_config(config)
    widths = settings.get("width")
    eye, reads = (widths.get(key) if isinstance(widths, dict) else None for key in (SAM, QWEN))
    if not isinstance(eye, dict) or not isinstance(reads, dict):
        raise CheckpointError(f"config.json: vision_config: width: must have the parts {SAM} and {QWEN}")
    spelt = {
        "hidden_size": size(eye, "width", 768), "num_hidden_layers": size(eye, "layers", 12),
        "num_attention_heads": size(eye, "heads", 12), "image_size": settings.get("image_size", 1024),
        "global_attn_indexes": eye.get("global_attn_indexes", [2, 5, 8, 11]),
        "downsample_channels": eye.get("downsample_channels", [512, 896]),
    }  # fmt: skip
    parts = {"sam_config": spelt, "encoder_config": {**QWEN_SIZES, "hidden_size": size(reads, "dim", 896)}}
    around = {**outer_config(config), "vision_config": parts}
    spec = decode_layers({**config, "mlp_layer_types": kinds, "head_dim": None}, tied=False)
    return seeing(spec, {**config, BESIDE: around}, tower, inside=INSIDE)


def decode_layers(config: Config, tied: bool) -> ModelSpec:
    """The decoder: `mlp_layer_types` names the layers with a mixture."""
    config = {"n_routed_experts": 64, "n_shared_experts": 2, "moe_intermediate_size": 1407, **config}
    method, grouped = text(config, "topk_method", "greedy"), dict[str, Any]()
    if method == "group_limited_greedy":
        grouped = {"groups": integer(config, "n_group"), "top_groups": integer(config, "topk_group"), "group_best": 1}
    elif method != "greedy":
        raise UnsupportedModelError(f"config.json: topk_method: {method!r:.80} is not supported by this version")
    bias, norms = flag(config, "attention_bias", False), pre_norms(config)
    moe, dense = mixture(config, renormalise=False, **grouped), mlp(config, bias=flag(config, "mlp_bias", False))
    mixer = attention(config, bias=bias, out_bias=bias)
    layers = [Layer(mixer, moe if routed else dense, norms) for routed in sparse(config, 0)]
    return decoder({**config, "tie_word_embeddings": tied}, layers)


def tower(config: Config) -> tuple[SamSpec, tuple[str, ...]]:
    settings = vision_config(config)
    eye, reads = (section(settings, key, "config.json: vision_config") for key in ("sam_config", "encoder_config"))
    sizes = eye.get("downsample_channels") or [512, 896]
    if not isinstance(sizes, list) or len(sizes) != 2 or not all(type(n) is int and n > 0 for n in sizes):
        raise CheckpointError(f"config.json: downsample_channels: must be two numbers, not {sizes!r:.80}")
    width = size(reads, "hidden_size", 4096)
    if sizes[-1] != width:
        raise CheckpointError(f"config.json: encoder_config: hidden_size: must be {sizes[-1]}, as SAM gives, not {width}")
    root = f"{ROOT}sam_encoder."
    projector = ProjectorSpec(root="model.", steps=(ProjectorLayer("multi_modal_projector", width, hidden_size(config), True),))
    result = sam(
        eye, tile=_tile(eye), root=root, projector=projector, reader=_queries(reads, width), learned=("model.view_separator",),
        convs=((f"{root}proj.conv1", sizes[0]), (f"{root}proj.conv2", sizes[1])),
    )  # fmt: skip
    if [(side // SHRUNK) ** 2 for side in (result.tile, result.grid)] != [count for count, _ in QUERIES]:
        raise UnsupportedModelError("config.json: image_size, patch_size: must give tiles of 144 vectors, and 256 of an image")
    return result, ()


def _tile(eye: Config) -> int:
    """Three quarters of the whole square."""
    return size(eye, "image_size", 1024) * TILE // 1024


def _queries(settings: Config, width: int) -> QueryEncoderSpec:
    heads = size(settings, "num_attention_heads", 32)
    kv_heads = heads if settings.get("num_key_value_heads", 32) is None else size(settings, "num_key_value_heads", 32)
    if settings.get("use_sliding_window") or width % heads or heads % kv_heads:
        raise UnsupportedModelError(
            "config.json: encoder_config: use_sliding_window, or heads that do not divide, are not supported"
        )
    rope = section(settings, "rope_parameters", "config.json: encoder_config")
    if rope.get("rope_type", "default") != "default":
        raise UnsupportedModelError("config.json: encoder_config: rope_parameters: only the default rope_type is supported")
    theta = real({**settings, **rope}, "rope_theta", default=1e4)
    return QueryEncoderSpec(
        root=f"{ROOT}vision_encoder.", hidden=width, layers=size(settings, "num_hidden_layers", 32), heads=heads,
        kv_heads=kv_heads, inner=size(settings, "intermediate_size", 22_016), theta=theta, queries=QUERIES,
        eps=real(settings, "rms_norm_eps", default=1e-6),
    )  # fmt: skip
