"""MiniMax-Text-01 and M1: lightning attention with fixed decay on most layers, post-norm, a mixture of experts on every
layer."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, flag, integer, real
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models.families.common import act, attention, decoder, eps, head_size, hidden_size, layer_count, layer_types, rope
from thalweg.models.families.mixtral import MERGED
from thalweg.models.spec import Layer, LightningAttention, ModelSpec, MoE, Names, Norm, Norms

FULL, LINEAR = "full_attention", "linear_attention"
BUFFERS = ("slope_rate", "query_decay", "key_decay", "diagonal_decay")
"""Tensors of files that follow from the configuration."""


def minimax(config: Config) -> ModelSpec:
    if config.get("shared_intermediate_size") or not flag(config, "postnorm", True):
        raise UnsupportedModelError("config.json: shared_intermediate_size, postnorm: this family has no shared expert")
    config = {"rms_norm_eps": 1e-5, "rope_theta": 1e6, **config}
    hidden, layers, head_dim = hidden_size(config), layer_count(config), head_size(config)
    if config.get("rotary_dim") is not None:
        config = {"partial_rotary_factor": integer(config, "rotary_dim", high=head_dim) / head_dim, **config}
    experts = integer(config, "num_local_experts", default=8)
    moe = MoE(
        experts=experts, top_k=integer(config, "num_experts_per_tok", high=experts, default=min(2, experts)),
        inner=integer(config, "intermediate_size"), act=act(config), renormalise=True,
        name="block_sparse_moe", gate="w1", up="w3", down="w2",
    )  # fmt: skip
    full = attention(config, head_dim=head_dim, rope=rope(config, head_dim, partial=True))
    result = []
    for i, kind in enumerate(layer_types(config, _types(config), known=(FULL, LINEAR))):
        mixer = full if kind == FULL else _lightning(config, full.heads, head_dim, i / max(layers - 1, 1))
        (keep, add), (ffn_keep, ffn_add) = (_factors(config, part) for part in (kind, "mlp"))
        norms = Norms(  # norm(keep * x + add * y) is norm(x + add / keep * y), but for its eps
            mixer_sum=Norm("post_attention_layernorm", hidden, eps(config) / keep**2),
            ffn_sum=Norm("ffn_sum", hidden, eps(config) / ffn_keep**2),
        )
        result.append(Layer(mixer, moe, norms, mixer_scales=((1.0, add / keep),), ffn_scale=ffn_add / ffn_keep))
    return decoder(
        config, result, embed_norm=Norm("embed_norm", hidden, eps(config)), norm=None, names=_names(layers),
        tied=flag(config, "tie_word_embeddings", False),
    )  # fmt: skip


def _lightning(config: Config, heads: int, head_dim: int, depth: float) -> LightningAttention:
    slopes = tuple(2.0 ** (-8 * (i + 1) / heads) * (1 - depth + 1e-5) for i in range(heads))
    return LightningAttention(heads=heads, head_dim=head_dim, slopes=slopes, act=act(config))


def _factors(config: Config, part: str) -> tuple[float, float]:
    """Factors of the stream and of additions to it, in both spellings."""
    short, long = {FULL: ("full_attn", "full_attention"), LINEAR: ("linear_attn", "linear_attention")}.get(part, (part, part))
    return tuple(  # type: ignore[return-value]
        real(config, f"layernorm_{long}_{k}", 1e-6, 1e6, default=real(config, f"{short}_{k}_factor", 1e-6, 1e6, default=1.0))
        for k in ("alpha", "beta")
    )


def _types(config: Config) -> list[str]:
    """By `attn_type_list` of published files, in which 1 sees everything, else every other layer."""
    section, layers = config.get("attn_type_list"), layer_count(config)
    if section is None:
        return [FULL if i % 2 == 0 else LINEAR for i in range(layers)]
    if not isinstance(section, list) or len(section) != layers or set(section) - {0, 1}:
        raise CheckpointError(f"config.json: attn_type_list: must be a list of {layers} numbers, each 0 or 1")
    return [FULL if each else LINEAR for each in section]


def _names(layers: int) -> Names:
    """The norm at a layer's beginning is that of the sum at the end of the layer before it."""
    ends = ["embed_norm", *(f"layers.{i}.ffn_sum" for i in range(layers))]
    begins = [*(f"layers.{i}.input_layernorm" for i in range(layers)), "norm"]
    moved = [(f"{root}{b}.", f"{root}{e}.") for b, e in zip(begins, ends, strict=True) for root in ("model.", "")]
    skip = tuple(f"{root}layers.{i}.self_attn.{name}" for i in range(layers) for name in BUFFERS for root in ("model.", ""))
    return Names(replace=tuple(moved), inside=MERGED, skip=skip)
