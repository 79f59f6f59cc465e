"""Baichuan 1 and 2: Llama with fused q, k and v, ALiBi in the larger models, and in version 2 an output matrix with normalised
rows."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, integer
from thalweg.models.families.bloom import slopes
from thalweg.models.families.common import attention, decoder, head_size, hidden_size, layer_count, mlp, pre_norms
from thalweg.models.spec import Attention, Layer, ModelSpec

ROTATES = 4096
"""Hidden size of those that have rotary positions under the name of the larger one."""
NORMED = 125_696
"""Tokens of Baichuan 2."""
PARTS = ("q", "k", "v")


def baichuan_7b(config: Config) -> ModelSpec:
    return _model(config, attention(config, fused="W_pack", parts=PARTS))


def baichuan(config: Config) -> ModelSpec:
    if hidden_size(config) == ROTATES:
        return baichuan_7b(config)
    heads = integer(config, "num_attention_heads")
    return _model(
        config,
        Attention(
            heads=heads, kv_heads=heads, head_dim=head_size(config), slopes=slopes(heads), fused="W_pack", parts=PARTS
        ),
    )  # fmt: skip


def _model(config: Config, heads: Attention) -> ModelSpec:
    normed = integer(config, "vocab_size") == NORMED
    return decoder(config, [Layer(heads, mlp(config), pre_norms(config))] * layer_count(config), head_normed=normed)
