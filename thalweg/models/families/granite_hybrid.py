"""Granite 4 (hybrid): Mamba-2 and attention layers with Granite's multipliers, a mixture with a shared expert or a plain
MLP."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, flag, integer, text
from thalweg.errors import UnsupportedModelError
from thalweg.models.families.common import act, attention, decoder, layer_count, layer_types, mlp, pre_norms
from thalweg.models.families.granite import multiplier, scales
from thalweg.models.families.mamba2 import hybrid
from thalweg.models.spec import MLP, Attention, Layer, Mamba2, ModelSpec, MoE, Names

KINDS = {"mamba": "mamba", "linear_attention": "mamba", "attention": "attention", "full_attention": "attention"}
"""`layer_types`, by their older names and their newer."""


def granite_hybrid(config: Config) -> ModelSpec:
    bias = flag(config, "attention_bias", False)
    heads = attention(config, bias=bias, out_bias=bias, scale=multiplier(config, "attention_multiplier"))
    if not _turns(config):
        heads = replace(heads, rope=None)
    types = layer_types(config, ["mamba"] * layer_count(config), known=tuple(KINDS))
    mixers: dict[str, Attention | Mamba2] = {"mamba": hybrid(config), "attention": heads}
    experts = integer(config, "num_local_experts", low=0, high=1 << 16, default=8)
    part = _mixture(config, experts) if experts else _shared_mlp(config)
    norms, by = pre_norms(config), multiplier(config, "residual_multiplier")
    names = Names(inside=((".shared_mlp.", ".block_sparse_moe.shared_mlp."),)) if experts else Names()
    layers = [Layer(mixers[KINDS[kind]], part, norms, multiplier=by) for kind in types]
    return decoder(config, layers, names=names, **scales(config))


def _turns(config: Config) -> bool:
    kind = text(config, "position_embedding_type", "nope")
    if kind not in ("rope", "nope"):
        raise UnsupportedModelError(f"config.json: position_embedding_type: {kind!r:.80} is neither rope nor nope")
    return kind == "rope"


def _shared_mlp(config: Config) -> MLP:
    inner = integer(config, "shared_intermediate_size", high=1 << 24, default=1024)
    return mlp(config, inner=inner, name="shared_mlp", fused="input_linear", down="output_linear")


def _mixture(config: Config, experts: int) -> MoE:
    return MoE(
        experts=experts, top_k=integer(config, "num_experts_per_tok", high=experts, default=min(2, experts)),
        inner=integer(config, "intermediate_size"), act=act(config), renormalise=True, name="block_sparse_moe",
        router="router.layer", fused=("input_linear.weight", "output_linear.weight"), shared=_shared_mlp(config),
    )  # fmt: skip
