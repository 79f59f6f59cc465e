"""openPangu Ultra MoE: latent attention (MLA), norms before and after each part, a sigmoid router without groups, shared
experts."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, flag, integer
from thalweg.errors import UnsupportedModelError
from thalweg.models.families.common import decoder, eps, hidden_size, layer_count, mlp, pre_norms
from thalweg.models.families.deepseek import drafts, latent
from thalweg.models.families.mixtures import sigmoid_mixture
from thalweg.models.spec import Layer, ModelSpec, Norm, Norms

LATER = ("use_mhc", "param_sink_number", "router_sliding_window", "block_post_layernorm_idx", "index_topk")
"""Keys of openPangu 2.0 that change what layers compute."""


def pangu_ultra_moe(config: Config) -> ModelSpec:
    """Without `sandwich_norm` the norms are those before attention and the feed-forward part."""
    later = [key for key in LATER if config.get(key)]
    if later:
        raise UnsupportedModelError(f"config.json: {', '.join(later)}: parts of openPangu 2.0 are not implemented")
    config = {"q_lora_rank": None, "n_group": 1, "topk_group": 1, **config}
    mixer, moe = latent(config, interleaved=True), sigmoid_mixture(config, correction="")
    norms, hidden, e = pre_norms(config), hidden_size(config), eps(config)
    if flag(config, "sandwich_norm", False):
        names = ("input_layernorm", "post_attention_layernorm", "pre_mlp_layernorm", "post_mlp_layernorm")
        norms = Norms(*(Norm(name, hidden, e) for name in names))
    dense, count = integer(config, "first_k_dense_replace", default=layer_count(config)), layer_count(config)
    layers = [Layer(mixer, mlp(config) if i < dense else moe, norms) for i in range(count)]
    return decoder(config, layers, names=drafts(config))
