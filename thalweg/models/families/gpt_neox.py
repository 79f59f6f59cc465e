"""GPT-NeoX, Pythia and Dolly: parallel attention and MLP with separate norms, fused q, k and v per head."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.config import Config, flag, integer, real
from thalweg.models.families.common import (
    UNGATED,
    act,
    attention,
    decoder,
    head_size,
    hidden_size,
    layer_count,
    rope,
    ungated_mlp,
)
from thalweg.models.spec import Layer, LayerNorm, ModelSpec, Names, Norms


def gpt_neox(config: Config) -> ModelSpec:
    # GPT-NeoX's names for rope_theta and partial_rotary_factor.
    older: dict[str, Any] = {
        "rope_theta": real(config, "rotary_emb_base", default=10_000.0),
        "partial_rotary_factor": real(config, "rotary_pct", 0, 1, default=0.25),
    }
    config = {**older, **config, "num_key_value_heads": integer(config, "num_attention_heads")}
    hidden, e = hidden_size(config), real(config, "layer_norm_eps", default=1e-5)
    bias, head_dim = flag(config, "attention_bias", True), head_size(config)
    layer = Layer(
        attention(
            config, head_dim=head_dim, rope=rope(config, head_dim, partial=True), bias=bias, out_bias=bias, name="attention",
            fused="query_key_value", grouped=True, out="dense",
        ),
        ungated_mlp(
            config, act=act(config, default="gelu", known=UNGATED), bias=True, up="dense_h_to_4h", down="dense_4h_to_h"
        ),
        Norms(mixer=LayerNorm("input_layernorm", hidden, e), ffn=LayerNorm("post_attention_layernorm", hidden, e)),
        parallel=flag(config, "use_parallel_residual", True),
    )  # fmt: skip
    masks = tuple(f"gpt_neox.layers.{i}.attention.{b}" for i in range(layer_count(config)) for b in ("bias", "masked_bias"))
    return decoder(
        config, [layer] * layer_count(config), norm=LayerNorm("final_layer_norm", hidden, e), root="gpt_neox.",
        embed="embed_in", head="embed_out", names=Names(skip=masks),
    )  # fmt: skip
