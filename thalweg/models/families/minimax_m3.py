"""MiniMax-M3, for text: attention that reads the best blocks of keys on most layers, QK-norm, partial RoPE, clamped gates,
sigmoid routers with expert bias, a shared expert."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from thalweg.checkpoint.config import Config, integer, real
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models.families.common import attention, decoder, eps, hidden_size, layer_count, layer_types, rope
from thalweg.models.families.gpt_oss import ALPHA, LIMIT
from thalweg.models.families.mixtures import sparse
from thalweg.models.families.multimodal import blind
from thalweg.models.spec import MLP, Attention, BlockSparseAttention, HeadNorm, Layer, ModelSpec, MoE, Names, Norm, Norms

FULL, BLOCKS = "full_attention", "minimax_m3_sparse"
_INDEXER = {
    "index_n_heads": "sparse_num_index_heads", "index_head_dim": "sparse_index_dim", "index_block_size": "sparse_block_size",
    "index_topk_blocks": "sparse_topk_blocks", "index_local_blocks": "sparse_local_block",
}  # fmt: skip
"""Keys of transformers -> those of `sparse_attention_config` in published files."""
_ACT = "swiglu_oai"


def minimax_m3(config: Config) -> ModelSpec:
    for key, value in (("swiglu_alpha", ALPHA), ("swiglu_limit", LIMIT)):
        if real(config, key, 0, 1e6, default=value) != value:
            raise UnsupportedModelError(f"config.json: {key}: this version has {value}, not {config[key]!r}")
    count, hidden, e = layer_count(config), hidden_size(config), eps(config)
    section: Any = config.get("sparse_attention_config") or {}
    if not isinstance(section, dict):
        raise CheckpointError(f"config.json: sparse_attention_config: must be an object, not {section!r:.80}")
    if section.get("sparse_init_block") or section.get("sparse_score_type", "max") != "max":
        raise UnsupportedModelError("config.json: sparse_init_block, sparse_score_type: this version has 0, and max")
    config = {**config, **{ours: section[theirs] for ours, theirs in _INDEXER.items() if theirs in section}}
    absent = [BLOCKS if f else FULL for f in _flags(section, "sparse_attention_freq", [0] * count, count)]
    unread = _flags(section, "sparse_disable_index_value", [1] * count, count)
    if any(kind == BLOCKS and not off for kind, off in zip(absent, unread, strict=True)):
        raise UnsupportedModelError("config.json: sparse_disable_index_value: this version has indexers without values")
    mixers, shared = _mixers(config), integer(config, "shared_intermediate_size", default=3072)
    dense = MLP(inner=integer(config, "dense_intermediate_size", high=1 << 24, default=12_288), act=_ACT)
    moe = _moe(config, MLP(inner=shared, act=_ACT, name="shared_experts"))
    if config.get("mlp_layer_types") is None:
        mixed = [bool(f) for f in _flags(config, "moe_layer_freq", [1] * count, count)]
    else:
        mixed = sparse(config, 0)
    first, second = (Norm(name, hidden, e, offset=1.0) for name in ("input_layernorm", "post_attention_layernorm"))
    norms = Norms(mixer=first, ffn=second)
    types = layer_types(config, absent, known=(FULL, BLOCKS))
    layers = [Layer(mixers[t], moe if m else dense, norms) for t, m in zip(types, mixed, strict=True)]
    spec = decoder(config, layers, norm=Norm("norm", hidden, e, offset=1.0), names=Names(skip=("mtp.", "model.mtp.")))
    return blind(spec, "patch_merge_mlp.", "language_model.mtp.")


def _mixers(config: Config) -> dict[str, Attention]:
    head_dim, kv = integer(config, "head_dim", default=128), integer(config, "num_key_value_heads", default=4)
    if config.get("rotary_dim") is not None and not config.get("rope_parameters"):  # of published files
        config = {"partial_rotary_factor": integer(config, "rotary_dim", high=head_dim) / head_dim, **config}
    full = attention(
        {"num_key_value_heads": kv, **config}, head_dim=head_dim, norm=HeadNorm(eps(config), offset=1.0),
        rope=rope({"rope_theta": 5e6, **config}, head_dim, partial=True),
    )  # fmt: skip
    if integer(config, "index_n_heads", default=4) != kv:
        raise UnsupportedModelError("config.json: index_n_heads: this version selects blocks for each of num_key_value_heads")
    top = integer(config, "index_topk_blocks", default=16)
    blocks = BlockSparseAttention(
        **{f: getattr(full, f) for f in ("heads", "kv_heads", "head_dim", "rope", "norm")}, top=top,
        index_dim=integer(config, "index_head_dim", default=128), block=integer(config, "index_block_size", default=128),
        local=integer(config, "index_local_blocks", low=0, high=top, default=1),
    )  # fmt: skip
    return {FULL: full, BLOCKS: blocks}


def _moe(config: Config, shared: MLP) -> MoE:
    experts = integer(config, "num_local_experts", default=128)
    return MoE(
        experts=experts, top_k=integer(config, "num_experts_per_tok", high=experts, default=min(4, experts)),
        inner=integer(config, "intermediate_size"), act=_ACT, scores="sigmoid", renormalise=True,
        scale=real(config, "routed_scaling_factor", 1e-6, 1e6, default=2.0), name="block_sparse_moe",
        correction="e_score_correction_bias", gate="w1", up="w3", down="w2", shared=shared,
    )  # fmt: skip


def _flags(config: Config, key: str, absent: Sequence[int], count: int) -> Sequence[int]:
    """A list of zeros and ones, one per layer."""
    section = config.get(key)
    if section is None:
        return absent
    if not isinstance(section, list) or len(section) != count or set(section) - {0, 1}:
        raise CheckpointError(f"config.json: {key}: must be a list of {count} numbers, each 0 or 1")
    return section
