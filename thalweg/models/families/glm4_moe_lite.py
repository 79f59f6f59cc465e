"""GLM-4.7-Flash: DeepSeek-V3's latent attention (MLA) with GLM-4.7's mixture of experts."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, flag, integer
from thalweg.errors import CheckpointError
from thalweg.models.families.common import eps, layer_count, pre_norms
from thalweg.models.families.deepseek import latent, layers
from thalweg.models.families.mixtures import sigmoid_mixture
from thalweg.models.families.nextn import attach_module
from thalweg.models.spec import Layer, ModelSpec


def glm4_moe_lite(config: Config) -> ModelSpec:
    config = {
        "q_lora_rank": 768, "qk_nope_head_dim": 192, "v_head_dim": 256, "n_routed_experts": 64, "num_experts_per_tok": 4,
        "moe_intermediate_size": 1536, "routed_scaling_factor": 1.8, "num_nextn_predict_layers": 1, **config,
        "rms_norm_eps": eps(config, default=1e-5),
    }  # fmt: skip
    mixer, moe = latent(config, interleaved=flag(config, "rope_interleave", True)), sigmoid_mixture(config)
    spec = layers(config, mixer, moe, dense=_dense(config))
    if not integer(config, "num_nextn_predict_layers"):
        return spec
    return attach_module(spec, Layer(mixer, moe, pre_norms(config)), eps(config))


def _dense(config: Config) -> int:
    """Layers before the first mixture: as `mlp_layer_types` says, or `first_k_dense_replace`, else one."""
    kinds, count = config.get("mlp_layer_types"), layer_count(config)
    if kinds is None:
        first = config.get("first_k_dense_replace", 1)
        kinds = ["dense"] * first + ["sparse"] * (count - first) if type(first) is int and 0 <= first <= count else []
    known = isinstance(kinds, list) and len(kinds) == count
    first = kinds.index("sparse") if known and "sparse" in kinds else count
    if not known or kinds != ["dense"] * first + ["sparse"] * (count - first):
        raise CheckpointError(f'config.json: mlp_layer_types: must be {count} names, "dense" ones, then "sparse" ones')
    return first
