"""DeepSeek-V3.2: DeepSeek-V3 with sparse attention (DSA), an indexer in every layer. In GLM-5 and its variants some layers
reuse the indices of the layer before them."""

from __future__ import annotations

from collections.abc import Sequence

from thalweg.checkpoint.config import Config, flag, integer
from thalweg.errors import CheckpointError
from thalweg.models.families.common import decoder, eps, layer_count, mlp, pre_norms
from thalweg.models.families.deepseek import drafts, latent
from thalweg.models.families.mixtures import sigmoid_mixture, sparse
from thalweg.models.families.nextn import attach_module
from thalweg.models.spec import Indexer, Layer, ModelSpec


def deepseek_v32(config: Config) -> ModelSpec:
    config = {
        "q_lora_rank": 1536, "n_routed_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 2048,
        "routed_scaling_factor": 2.5, "n_group": 8, "topk_group": 4, "num_nextn_predict_layers": 1, "index_n_heads": 64,
        **config,
    }  # fmt: skip
    return _build_spec(config, [True] * layer_count(config), interleaved=False)


def glm_moe_dsa(config: Config) -> ModelSpec:
    config = {
        "q_lora_rank": 2048, "qk_nope_head_dim": 192, "v_head_dim": 256, "n_routed_experts": 256, "num_experts_per_tok": 8,
        "moe_intermediate_size": 2048, "routed_scaling_factor": 2.5, "num_nextn_predict_layers": 1, "index_n_heads": 32,
        **config, "rms_norm_eps": eps(config, default=1e-5),
    }  # fmt: skip
    return _build_spec(config, own_indexers(config), interleaved=flag(config, "indexer_rope_interleave", True))


def _build_spec(config: Config, own: Sequence[bool], *, interleaved: bool) -> ModelSpec:
    """own: which layers have an indexer. interleaved: how its heads turn."""
    indexer = Indexer(
        heads=integer(config, "index_n_heads", high=1 << 16), dim=integer(config, "index_head_dim", high=1 << 16, default=128),
        interleaved=interleaved,
    )  # fmt: skip
    turned = integer(config, "qk_rope_head_dim", default=64)
    if indexer.dim < turned:
        raise CheckpointError(f"config.json: index_head_dim: {indexer.dim}, of which qk_rope_head_dim ({turned}) turn")
    top, norms, moe, plain = (
        integer(config, "index_topk", default=2048),
        pre_norms(config),
        sigmoid_mixture(config),
        mlp(config),
    )
    mixers = {
        with_one: latent(
            config, interleaved=flag(config, "rope_interleave", True), top=top, indexer=indexer if with_one else None
        )
        for with_one in (True, False)
    }
    mixtures = sparse(config, integer(config, "first_k_dense_replace", default=3))
    spec = decoder(
        config, [Layer(mixers[o], moe if m else plain, norms) for o, m in zip(own, mixtures, strict=True)], names=drafts(config)
    )
    if not integer(config, "num_nextn_predict_layers", low=0):
        return spec
    return attach_module(spec, Layer(mixers[True], moe, norms), eps(config))


def own_indexers(config: Config) -> list[bool]:
    """Which layers have an indexer: by `indexer_types`, a pattern of F and S, or every so many from an offset on."""
    count, types, pattern = layer_count(config), config.get("indexer_types"), config.get("index_topk_pattern")
    if types is None and isinstance(pattern, str):
        types = [{"F": "full", "S": "shared"}.get(c, c) for c in pattern]
    elif types is None and pattern is not None:
        types = pattern
    if types is None:
        every = max(1, integer(config, "index_topk_freq", low=0, default=1))
        offset = integer(config, "index_skip_topk_offset", low=0, default=2)
        return [max(i - offset + 1, 0) % every == 0 for i in range(count)]
    known = isinstance(types, list) and all(kind in ("full", "shared") for kind in types)
    if not known or len(types) != count or types[0] != "full":
        raise CheckpointError(
            f'config.json: indexer_types: must be a list of {count} names, "full" or "shared", of which the first is "full"'
        )
    return [kind == "full" for kind in types]
