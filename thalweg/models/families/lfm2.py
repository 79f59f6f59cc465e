"""LFM2, dense and MoE: gated short convolutions, and some attention layers with QK-norm."""

from __future__ import annotations

from collections.abc import Sequence

from thalweg.checkpoint.config import Config, flag, integer, real
from thalweg.errors import CheckpointError
from thalweg.models.families.common import attention, decoder, hidden_size, layer_count, layer_types, mlp
from thalweg.models.families.mamba import taps
from thalweg.models.spec import MLP, Attention, HeadNorm, Layer, ModelSpec, MoE, Norm, Norms, ShortConv


def lfm2(config: Config) -> ModelSpec:
    config = {**config, "intermediate_size": config.get("block_ff_dim", config.get("intermediate_size"))}
    inner = integer(config, "intermediate_size")
    if flag(config, "block_auto_adjust_ff_dim", True):
        by, of = (
            real(config, "block_ffn_dim_multiplier", 1e-3, 1e3, default=1.0),
            integer(config, "block_multiple_of", default=256),
        )
        inner = -(-int(by * int(2 * inner / 3)) // of) * of
    return _model(config, [_mlp(config, inner)] * layer_count(config))


def lfm2_moe(config: Config) -> ModelSpec:
    dense = integer(config, "num_dense_layers", default=2)
    experts = integer(config, "num_experts", default=32)
    moe = MoE(
        experts=experts, top_k=integer(config, "num_experts_per_tok", high=experts, default=min(4, experts)),
        inner=integer(config, "moe_intermediate_size", default=1792), scores="sigmoid",
        renormalise=flag(config, "norm_topk_prob", True),
        scale=real(config, "routed_scaling_factor", default=1.0),
        correction="expert_bias" if flag(config, "use_expert_bias", True) else "", name="feed_forward", gate="w1", up="w3",
        down="w2",
    )  # fmt: skip
    plain = _mlp(config, integer(config, "intermediate_size"))
    return _model(config, [plain if i < dense else moe for i in range(layer_count(config))])


def _mlp(config: Config, inner: int) -> MLP:
    return mlp(config, inner=inner, act="silu", name="feed_forward", gate="w1", up="w3", down="w2")


def _model(config: Config, parts: Sequence[MLP | MoE]) -> ModelSpec:
    config = {"rope_theta": 1_000_000.0, **config}
    hidden, e = hidden_size(config), real(config, "norm_eps", default=1e-5)
    mixers: dict[str, Attention | ShortConv] = {
        "conv": ShortConv(inner=hidden, kernel=taps(config, "conv_L_cache", 3), bias=flag(config, "conv_bias", False)),
        "full_attention": attention(config, out="out_proj", norm=HeadNorm(e, q="q_layernorm", k="k_layernorm")),
    }
    norms = Norms(mixer=Norm("operator_norm", hidden, e), ffn=Norm("ffn_norm", hidden, e))
    types = layer_types(config, _types(config), known=tuple(mixers))
    layers = [Layer(mixers[kind], part, norms) for kind, part in zip(types, parts, strict=True)]
    tied = flag(config, "tie_embedding", flag(config, "tie_word_embeddings", True))
    return decoder(config, layers, norm=Norm("embedding_norm", hidden, e), tied=tied)


def _types(config: Config) -> list[str]:
    """As `full_attn_idxs` names those with attention: absent = all."""
    layers = layer_count(config)
    section = config.get("full_attn_idxs")
    if section is None:
        return ["full_attention"] * layers
    if not isinstance(section, list) or not all(isinstance(i, int) and 0 <= i < layers for i in section):
        raise CheckpointError("config.json: full_attn_idxs: must be a list of layer indices")
    return ["full_attention" if i in section else "conv" for i in range(layers)]
