"""A.X K1: DeepSeek-V3 with a norm after each mixture."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, flag, integer, text
from thalweg.models.families.common import decoder, eps, hidden_size, layer_count, mlp, pre_norms
from thalweg.models.families.deepseek import drafts, latent
from thalweg.models.families.mixtures import sigmoid_mixture, sparse
from thalweg.models.spec import Layer, ModelSpec, Names, Norm


def axk1(config: Config) -> ModelSpec:
    """Routers have an expert bias only with `topk_method` "noaux_tc". Released files have others."""
    config = {
        "q_lora_rank": 1536, "n_routed_experts": 192, "num_experts_per_tok": 8, "moe_intermediate_size": 2048,
        "routed_scaling_factor": 2.5, "n_group": 8, "topk_group": 4, **config,
    }  # fmt: skip
    norms, count = pre_norms(config), layer_count(config)
    mixer, moe = latent(config, interleaved=flag(config, "rope_interleave", True)), sigmoid_mixture(config)
    if text(config, "topk_method", "noaux_tc") != "noaux_tc":
        moe = replace(moe, correction="")
    mixed = Layer(mixer, moe, replace(norms, ffn_out=Norm("post_mlp_layernorm", hidden_size(config), eps(config))))
    plain = Layer(mixer, mlp(config), norms)
    dense, every = integer(config, "first_k_dense_replace", default=1), integer(config, "moe_layer_freq", default=1)
    kinds = [kind and i % every == 0 for i, kind in enumerate(sparse(config, dense))]
    unused = tuple(f"model.layers.{i}.post_mlp_layernorm." for i in range(count) if not kinds[i])
    names = Names(skip=(*drafts(config).skip, *unused))
    return decoder(config, [mixed if kind else plain for kind in kinds], names=names)
