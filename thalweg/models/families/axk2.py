"""A.X K2: DeepSeek-V3.2's attention with gates from the latent of q, norms with gates that read their output."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, integer
from thalweg.errors import CheckpointError
from thalweg.models.families.common import decoder, eps, hidden_size, mlp
from thalweg.models.families.deepseek import drafts, latent
from thalweg.models.families.mixtures import sigmoid_mixture, sparse
from thalweg.models.spec import GatedNorm, Indexer, Layer, ModelSpec, Norm, Norms


def axk2(config: Config) -> ModelSpec:
    config = {
        "q_lora_rank": 384, "kv_lora_rank": 128, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64,
        "n_routed_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 512, "routed_scaling_factor": 2.5,
        "index_n_heads": 16, **config,
    }  # fmt: skip
    hidden, e, dim = hidden_size(config), eps(config), integer(config, "index_head_dim", high=1 << 16, default=128)
    if dim < integer(config, "qk_rope_head_dim"):
        raise CheckpointError(f"config.json: index_head_dim: {dim}, of which qk_rope_head_dim turn")
    indexer = Indexer(heads=integer(config, "index_n_heads", high=1 << 16), dim=dim)
    mixer = latent(config, interleaved=True, top=integer(config, "index_topk", default=2048), indexer=indexer, q_gate=True)
    rank = integer(config, "gated_norm_rank", default=16)
    first, last = (GatedNorm(name, hidden, e, rank) for name in ("input_layernorm", "post_attention_layernorm"))
    mixed = Layer(mixer, sigmoid_mixture(config), Norms(mixer=first, ffn=last))
    plain = Layer(mixer, mlp(config), Norms(mixer=first, ffn=Norm("post_attention_layernorm", hidden, e)))
    dense, every = integer(config, "first_k_dense_replace", default=1), integer(config, "moe_layer_freq", default=1)
    kinds = [kind and (i % every == 0 or "mlp_layer_types" in config) for i, kind in enumerate(sparse(config, dense))]
    return decoder(config, [mixed if kind else plain for kind in kinds], names=drafts(config))
