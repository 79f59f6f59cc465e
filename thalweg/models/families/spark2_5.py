"""Spark 2.5: q, k and v in one tensor, a gate per head, sliding windows with other RoPE settings on three of four layers,
gated GELU MLPs."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, flag, integer, text
from thalweg.errors import UnsupportedModelError
from thalweg.models.families.common import attention, decoder, head_size, layer_count, layer_types, mlp, pre_norms, rope
from thalweg.models.spec import Attention, Layer, ModelSpec, Rows

FULL, WINDOW = "full_attention", "sliding_attention"


def spark2_5(config: Config) -> ModelSpec:
    if text(config, "gate_attn_act_mode", "sigmoid") != "sigmoid" or not flag(config, "headwise_attn_output_gate", True):
        raise UnsupportedModelError(
            "config.json: gate_attn_act_mode, headwise_attn_output_gate: this family only supports a sigmoid per head"
        )
    if flag(config, "attention_bias", False):
        raise UnsupportedModelError("config.json: attention_bias: this family has attention without biases")
    absent = [FULL if i % 4 == 3 else WINDOW for i in range(layer_count(config))]
    types = layer_types(config, absent)
    mixers = {kind: _attention(config, kind) for kind in dict.fromkeys(types)}
    inner, norms = mlp({"hidden_act": "gelu", **config}, bias=flag(config, "mlp_bias", False)), pre_norms(config)
    return decoder(
        config, [Layer(mixers[kind], inner, norms) for kind in types], embed="embedding",
        tied=flag(config, "tie_word_embeddings", True),
    )  # fmt: skip


def _attention(config: Config, kind: str) -> Attention:
    dim = head_size(config)
    result = attention(
        config, head_dim=dim, rope=rope(config, dim, kind=kind, partial=True), gate="g_proj", gate_heads=True, out="out_proj",
        window=integer(config, "sliding_window") if kind == WINDOW else 0,
    )  # fmt: skip
    q, k = result.heads * dim, result.kv_heads * dim
    every = q + 2 * k
    rows = Rows("q_k_v_proj", 0, q, every), Rows("q_k_v_proj", q, k, every), Rows("q_k_v_proj", q + k, k, every)
    return replace(result, rows=rows)
