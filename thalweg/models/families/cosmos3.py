"""Cosmos 3, the model that reads and answers: Qwen3-VL's layers (Nano and larger), or SigLIP 2 and an ungated decoder (Edge).
Checkpoints contain the generator of images, videos and actions too, which is not loaded."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, flag, integer
from thalweg.models.families.common import (
    UNGATED,
    act,
    attention,
    decoder,
    eps,
    head_size,
    hidden_size,
    layer_count,
    pre_norms,
    rope,
    ungated_mlp,
)
from thalweg.models.families.multimodal import one_axis, qwen3_vl, seeing, with_axes
from thalweg.models.families.towers.clip import encoder
from thalweg.models.families.towers.common import outer_config, size, vision_config, with_defaults
from thalweg.models.spec import Layer, LayerNorm, ModelSpec, VisionSpec
from thalweg.models.spec.vision import ProjectorLayer, ProjectorSpec

_PARTS = ("layers.", "embed_tokens.", "norm.")
_VISUAL = ("blocks.", "merger.", "patch_embed.", "pos_embed.", "deepstack_merger_list.")
FLAT = tuple((part, f"model.{part}") for part in _PARTS) + tuple((part, f"model.visual.{part}") for part in _VISUAL)
"""Prefixes of the checkpoints that contain the generator."""
INSIDE = (
    (".self_attn.to_q.", ".self_attn.q_proj."), (".self_attn.to_k.", ".self_attn.k_proj."),
    (".self_attn.to_v.", ".self_attn.v_proj."), (".self_attn.to_out.", ".self_attn.o_proj."),
    (".self_attn.norm_q.", ".self_attn.q_norm."), (".self_attn.norm_k.", ".self_attn.k_norm."),
)  # fmt: skip
EDGE_INSIDE = ((".mlp.up_proj.", ".mlp.fc1."), (".mlp.down_proj.", ".mlp.fc2."))
EDGE_NAMES = (("model.visual.", "model.vision_tower."), ("model.projector.", "model.multi_modal_projector."))
OF_GENERATOR = (
    "proj_in.", "proj_out.", "time_embedder.", "audio_proj_in.", "audio_proj_out.", "audio_modality_embed",
    "action_proj_in.", "action_proj_out.", "action_modality_embed", "norm_moe_gen.",
)  # fmt: skip
OF_GENERATOR_LAYERS = (
    "input_layernorm_moe_gen.", "post_attention_layernorm_moe_gen.", "mlp_moe_gen.", "self_attn.add_q_proj.",
    "self_attn.add_k_proj.", "self_attn.add_v_proj.", "self_attn.to_add_out.", "self_attn.norm_added_q.",
    "self_attn.norm_added_k.", "self_attn.k_norm_und_for_gen.",
)  # fmt: skip
SIGLIP_2 = {
    "model_type": "cosmos3_edge_vision", "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27,
    "num_attention_heads": 16, "patch_size": 16,
}  # fmt: skip


def cosmos3(config: Config) -> ModelSpec:
    spec = qwen3_vl(config)
    names = replace(
        spec.names, replace=(*FLAT, *spec.names.replace), inside=(*spec.names.inside, *INSIDE),
        skip=(*spec.names.skip, *_generator(layer_count(config))),
    )  # fmt: skip
    return replace(spec, names=names)


def cosmos3_edge(config: Config) -> ModelSpec:
    config = {"rope_theta": 100_000_000.0, "head_dim": 128, "num_key_value_heads": 8, **config}
    config["rms_norm_eps"] = eps(config, default=1e-5)
    plain, count = one_axis(config), layer_count(config)
    head_dim, bias = head_size(plain), flag(config, "attention_bias", False)
    mlp = ungated_mlp(config, act=act(config, default="relu2", known=UNGATED), bias=flag(config, "mlp_bias", False))
    each = Layer(
        attention(plain, head_dim=head_dim, rope=rope(plain, head_dim), bias=bias, out_bias=bias), mlp, pre_norms(config)
    )  # fmt: skip
    spec = with_axes(decoder(config, [each] * count), config, mixed=True)
    flat = tuple((part, f"model.{part}") for part in _PARTS)
    return seeing(
        spec, config, _tower, replace=(*flat, *EDGE_NAMES), inside=(*INSIDE, *EDGE_INSIDE), skip=_generator(count)
    )  # fmt: skip


def _generator(layers: int) -> tuple[str, ...]:
    """Prefixes of the generator's tensors."""
    return OF_GENERATOR + tuple(f"layers.{i}.{part}" for i in range(layers) for part in OF_GENERATOR_LAYERS)


def _tower(config: Config) -> tuple[VisionSpec, tuple[str, ...]]:
    config = with_defaults(config, **SIGLIP_2)
    section = vision_config(config)
    hidden, merge = size(section, "hidden_size", 1152), integer(section, "spatial_merge_size", high=16, default=2)
    wide, inner = hidden * merge**2, size(outer_config(config), "projector_hidden_size", 11_520)
    projector = ProjectorSpec(
        root="model.multi_modal_projector.", group=merge**2, before=LayerNorm("norm", hidden, 1e-6),
        steps=(
            ProjectorLayer("linear_fc1", wide, inner, True, "gelu"),
            ProjectorLayer("linear_fc2", inner, hidden_size(config), True),
        ),
    )  # fmt: skip
    result, unread = encoder(config, size(section, "num_hidden_layers", 27), projector, normed=True)
    patch = result.kernel[0] * result.kernel[1] ** 2  # values in a row
    return replace(result, kernel=(patch,), rows=size(section, "num_patches", 256)), unread
