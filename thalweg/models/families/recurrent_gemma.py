"""RecurrentGemma (Griffin): gated linear recurrences on two of three layers, attention with a window and partial RoPE on the
third, Gemma's norms and scaled embeddings, capped logits."""

from __future__ import annotations

import struct
from itertools import cycle, islice

from thalweg.checkpoint.config import Config, flag, integer, real
from thalweg.errors import UnsupportedModelError
from thalweg.models.families.common import act, attention, decoder, eps, head_size, hidden_size, layer_count, mlp, rope
from thalweg.models.spec import Attention, GatedRecurrence, Layer, ModelSpec, Norm, Norms

BLOCKS = ("recurrent", "recurrent", "attention")


def recurrent_gemma(config: Config) -> ModelSpec:
    hidden, e, dim = hidden_size(config), eps(config), head_size(config)
    heads, bias = integer(config, "num_attention_heads"), flag(config, "attention_bias", False)
    config = {"num_key_value_heads": heads, "partial_rotary_factor": 0.5, **config}
    activation = act(config, "hidden_activation", "gelu_pytorch_tanh")
    section = config.get("block_types") or BLOCKS
    if not isinstance(section, list | tuple) or not section or any(kind not in BLOCKS for kind in section):
        raise UnsupportedModelError(f"config.json: block_types: must be a list of {' and '.join(sorted({*BLOCKS}))}")
    mixers: dict[str, Attention | GatedRecurrence] = {
        "attention": attention(
            config, head_dim=dim, rope=rope(config, dim, partial=True), bias=bias, out_bias=True, name="temporal_block",
            window=integer(config, "attention_window_size", default=2048),
        ),
        "recurrent": GatedRecurrence(
            inner=integer(config, "lru_width", high=1 << 20, default=hidden), heads=heads, act=activation,
            kernel=integer(config, "conv1d_width", low=2, high=1 << 10, default=4),
        ),
    }  # fmt: skip
    first, second = (Norm(name, hidden, e, offset=1.0) for name in ("temporal_pre_norm", "channel_pre_norm"))
    inner = mlp(config, inner=integer(config, "intermediate_size") // 2, act=activation, bias=True, name="mlp_block")
    kinds = islice(cycle(section), layer_count(config))
    return decoder(
        config, [Layer(mixers[kind], inner, Norms(mixer=first, ffn=second)) for kind in kinds],
        norm=Norm("final_norm", hidden, e, offset=1.0), tied=flag(config, "tie_word_embeddings", True),
        embed_scale=_round(hidden**0.5), logit_softcap=real(config, "logits_soft_cap", 1e-6, 1e6, default=30.0),
    )  # fmt: skip


def _round(value: float) -> float:
    """value in bfloat16, as the model was trained."""
    bits = int.from_bytes(struct.pack(">f", value), "big")
    bits += 0x7FFF + (bits >> 16 & 1)
    found: float = struct.unpack(">f", (bits >> 16 << 16).to_bytes(4, "big"))[0]
    return found
