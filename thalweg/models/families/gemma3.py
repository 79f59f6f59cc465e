"""Gemma 3, text: a norm before and after each part, norms that multiply by 1 + weight, embeddings scaled by the root of
their width; layers with a sliding window and others that see everything, each kind with rotary positions of its own."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, flag, integer, real
from thalweg.errors import UnsupportedModelError
from thalweg.models.families.common import (
    act,
    attention,
    decoder,
    eps,
    hidden_size,
    layer_count,
    layer_types,
    mlp,
    rope,
    sliding_window,
)
from thalweg.models.spec import HeadNorm, Layer, ModelSpec, Norm, Norms


def gemma3(config: Config) -> ModelSpec:
    if flag(config, "use_bidirectional_attention", False):
        raise UnsupportedModelError(
            "config.json: use_bidirectional_attention: this version serves causal models of this family"
        )
    hidden, e = hidden_size(config), eps(config)
    head_dim = integer(config, "head_dim", high=1 << 16, default=256)
    norms = Norms(*(Norm(name, hidden, e, offset=1.0) for name in (
        "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm",
    )))  # fmt: skip
    every = integer(config, "sliding_window_pattern", default=6)
    absent = ["full_attention" if (i + 1) % every == 0 else "sliding_attention" for i in range(layer_count(config))]
    inner = mlp(config, act=act(config, "hidden_activation", "gelu_pytorch_tanh"))
    kinds = {
        kind: Layer(
            attention(
                config, head_dim=head_dim, rope=rope(config, head_dim, kind=kind),
                window=sliding_window(config) if kind == "sliding_attention" else 0,
                scale=real(config, "query_pre_attn_scalar", 1e-6, 1e6, default=256.0) ** -0.5,
                softcap=real(config, "attn_logit_softcapping", 0, 1e6, default=0.0),
                bias=flag(config, "attention_bias", False), out_bias=flag(config, "attention_bias", False),
                norm=HeadNorm(e, offset=1.0),
            ),
            inner, norms,
        )
        for kind in ("sliding_attention", "full_attention")
    }  # fmt: skip
    return decoder(
        config, [kinds[kind] for kind in layer_types(config, absent)],
        norm=Norm("norm", hidden, e, offset=1.0), tied=flag(config, "tie_word_embeddings", True), embed_scale=hidden**0.5,
        logit_softcap=real(config, "final_logit_softcapping", 0, 1e6, default=0.0),
    )  # fmt: skip
