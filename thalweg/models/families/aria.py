"""Aria: SigLIP encoder, a projector with learned queries, a decoder with mixtures and shared experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from thalweg.checkpoint.config import Config, flag, integer
from thalweg.errors import CheckpointError
from thalweg.models.families.common import act, attention, decoder, hidden_size, layer_count, mlp, pre_norms
from thalweg.models.families.multimodal import seeing
from thalweg.models.families.towers.clip import encoder
from thalweg.models.families.towers.common import feature_layers, outer_config, size, vision_config, with_defaults
from thalweg.models.spec import Layer, ModelSpec, MoE, QueryProjectorSpec, VisionSpec
from thalweg.models.spec.vision import ProjectorSpec

VISION = {
    "model_type": "idefics3_vision", "hidden_size": 1152, "intermediate_size": 3072, "num_hidden_layers": 12, "image_size": 224,
    "patch_size": 32,
}  # fmt: skip
INSIDE = ((".experts.fc1.weight", ".experts.gate_up_proj"), (".experts.fc2.weight", ".experts.down_proj"))
"""As its authors name these tensors."""
QUERIES = {"1225": 128, "4900": 256}


def aria(config: Config) -> ModelSpec:
    """`intermediate_size` is that of one expert."""
    inner = integer(config, "intermediate_size", default=4096)
    experts = integer(config, "moe_num_experts", high=1 << 12, default=8)
    always = integer(config, "moe_num_shared_experts", high=1 << 12, default=2)
    moe = MoE(
        experts=experts, top_k=integer(config, "moe_topk", high=experts, default=min(2, experts)), inner=inner, act=act(config),
        renormalise=True, router="router", fused=("experts.gate_up_proj", "experts.down_proj"), turned=True,
        shared=mlp(config, inner=always * inner, name="shared_experts"),
    )  # fmt: skip
    bias = flag(config, "attention_bias", False)
    heads = attention(config, bias=bias, out_bias=bias)
    spec = decoder(config, [Layer(heads, moe, pre_norms(config))] * layer_count(config))
    return seeing(spec, config, tower, inside=INSIDE)


def count_queries(config: Config) -> dict[int, int]:
    """Vectors of a square by its patches: `projector_patch_to_query_dict`. CheckpointError."""
    section: Any = outer_config(config).get("projector_patch_to_query_dict") or QUERIES
    if not isinstance(section, dict) or not all(
        str(k).isdecimal() and type(v) is int and 0 < v < 1 << 16 for k, v in section.items()
    ):
        raise CheckpointError(f"config.json: projector_patch_to_query_dict: must be an object of numbers, not {section!r:.80}")
    return {int(patches): queries for patches, queries in section.items()}


def tower(config: Config) -> tuple[VisionSpec, tuple[str, ...]]:
    config = with_defaults(config, **VISION)
    section, out = vision_config(config), hidden_size(config)
    hidden, (run,) = size(section, "hidden_size", 1152), feature_layers(config, size(section, "num_hidden_layers", 12), -1)
    resampler = QueryProjectorSpec(
        root="model.multi_modal_projector.", queries=max(count_queries(config).values()), hidden=hidden, inner=out,
        heads=size(section, "num_attention_heads", 16),
    )  # fmt: skip
    result, unread = encoder(config, run, ProjectorSpec(root="", steps=()))
    return replace(result, resampler=resampler), unread
