"""Mistral Large 4, for text: latent attention (MLA) with queries scaled by position and head, sparse attention (DSA)
with separate indexers, learned rotary frequencies or NoPE, softmax routing, a shared expert."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from thalweg.checkpoint.config import Config, flag, integer, real
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models.families.common import decoder, eps, layer_count, mlp, pre_norms, rope
from thalweg.models.families.deepseek_v32 import own_indexers
from thalweg.models.families.mixtures import mixture, sparse
from thalweg.models.families.multimodal import blind
from thalweg.models.spec import Indexer, LatentAttention, Layer, ModelSpec, Names, Rope

ROPE = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 2048.0, "original_max_position_embeddings": 512, "beta_fast": 32.0,
    "beta_slow": 1.0, "attention_factor": 1.0,
}  # fmt: skip
"""Of configurations without settings."""
_INSIDE = (
    (".attention.", ".self_attn."), (".wq.", ".q_proj."), (".wkv_a_with_mqa.", ".kv_a_proj_with_mqa."),
    (".wkv_b.", ".kv_b_proj."), (".wo.", ".o_proj."), (".attention_norm.", ".input_layernorm."),
    (".ffn_norm.", ".post_attention_layernorm."), (".kv_a_norm.", ".kv_a_layernorm."), (".feed_forward.", ".mlp."),
    (".ssmax_scaling.s", ".softmax_scaling.scale"), (".ssmax_scaling.b", ".softmax_scaling.bias"), (".w1.", ".gate_proj."),
    (".w2.", ".down_proj."), (".w3.", ".up_proj."), (".gate.", ".mlp.gate."), (".experts.", ".mlp.experts."),
    (".shared_experts.", ".mlp.shared_experts."), (".mlp.mlp.", ".mlp."),
)  # fmt: skip
"""Names of published files -> those of transformers. The last pair is for names that are transformers' already."""
_PREFIXES = (
    ("tok_embeddings.", "model.embed_tokens."), ("lerope.alpha", "model.rotary_emb.alpha"), ("layers.", "model.layers."),
    ("norm.", "model.norm."), ("output.", "lm_head."),
)  # fmt: skip
_UNREAD = ("vision_encoder.", "vision_language_adapter.", "patch_merger.", "pre_mm_projector_norm.", "mtp_dspark.")


def mistral_large4(config: Config) -> ModelSpec:
    config = {
        "num_key_value_heads": 64, "n_routed_experts": 128, "num_experts_per_tok": 4, "moe_intermediate_size": 6144,
        "index_n_heads": 32, **config, "rms_norm_eps": eps(config, default=1e-5),
    }  # fmt: skip
    count, norms = layer_count(config), pre_norms(config)
    if config.get("kv_source_layers") not in (None, list(range(count))):
        raise UnsupportedModelError(
            "config.json: kv_source_layers: this version does not support layers that read the latents of an earlier layer"
        )
    if flag(config, "attention_bias", False):
        raise UnsupportedModelError("config.json: attention_bias: this family has attention without biases")
    turned, own = _list_rotary(config, count), own_indexers(config)
    if not (config.get("rope_parameters") or config.get("rope_scaling")):
        config = {**config, "rope_parameters": ROPE}
    dim = integer(config, "qk_rope_head_dim", high=1 << 16, default=64)
    positions = rope({**config, "partial_rotary_factor": None}, dim, interleaved=True)
    positions = Rope(positions.parameters, dim, positions.trained, interleaved=True, scaled="rotary_emb.alpha")
    mixers = {each: _attention(config, positions, *each) for each in dict.fromkeys(zip(turned, own, strict=True))}
    moe = mixture(
        config, renormalise=True, groups=integer(config, "n_group", default=1),
        top_groups=integer(config, "topk_group", default=1),
    )  # fmt: skip
    parts = [moe if m else mlp(config) for m in sparse(config, integer(config, "first_k_dense_replace", low=0, default=1))]
    layers = [Layer(mixers[each], part, norms) for each, part in zip(zip(turned, own, strict=True), parts, strict=True)]
    spec = decoder(
        config, layers, logit_softcap=real(config, "final_logit_softcapping", 1e-6, 1e6, default=30.0),
        names=Names(inside=_INSIDE),
    )  # fmt: skip
    result = blind(spec, *_UNREAD)
    return replace(result, names=replace(result.names, replace=(*result.names.replace, *_PREFIXES)))


def _list_rotary(config: Config, count: int) -> list[bool]:
    """Which layers have rotary positions: all but every fourth, or by `no_rope_layers`, where 1 means that a layer has them."""
    section: Any = config.get("no_rope_layers")
    if section is None:
        every = integer(config, "no_rope_layer_interval", default=4)
        return [(i + 1) % every != 0 for i in range(count)]
    if (
        not isinstance(section, list)
        or len(section) < count
        or not all(type(n) in (bool, int) and n in (0, 1) for n in section)
    ):
        raise CheckpointError(f"config.json: no_rope_layers: must be a list of {count} numbers, 0 or 1")
    return [bool(each) for each in section[:count]]


def _attention(config: Config, positions: Rope, turns: bool, own: bool) -> LatentAttention:
    def size(key: str, default: int) -> int:
        return integer(config, key, high=1 << 16, default=default)

    index, nope = size("index_head_dim", 128), size("qk_nope_head_dim", 64)
    if index < positions.dim:
        raise CheckpointError(f"config.json: index_head_dim: {index}, of which qk_rope_head_dim ({positions.dim}) turn")
    indexer = Indexer(
        heads=size("index_n_heads", 32), dim=index, interleaved=True, apart=True, grows="softmax_scaling", turns=turns
    )
    return LatentAttention(
        heads=integer(config, "num_attention_heads"), latent=size("kv_lora_rank", 512), value_dim=size("v_head_dim", 128),
        nope_dim=nope if turns else nope + positions.dim, rope=positions if turns else None, eps=eps(config),
        softmax_scaling="softmax_scaling", top=size("index_topk", 2048), indexer=indexer if own else None,
    )  # fmt: skip
