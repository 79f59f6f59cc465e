"""Gemma 3 (text) and Rnj-1: pre- and post-norms with (1 + w) RMSNorm, scaled embeddings, sliding-window and full
layers with separate RoPE settings."""

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
from thalweg.models.families.tails import embedder
from thalweg.models.spec import HeadNorm, Layer, ModelSpec, Norm, Norms


def gemma3_text(config: Config) -> ModelSpec:
    """A bare decoder: EmbeddingGemma, with bidirectional attention."""
    return embedder(gemma3(config, both_ways=flag(config, "use_bidirectional_attention", False)), config)


def gemma3(config: Config, both_ways: bool = False) -> ModelSpec:
    config = {"rope_theta": 1e6, "rope_local_base_freq": 1e4, **config}
    every = integer(config, "sliding_window_pattern", default=6)
    return sandwich_decoder(config, every, HeadNorm(eps(config), offset=1.0), caps=(0.0, 0.0), both_ways=both_ways)


def rnj1(config: Config) -> ModelSpec:
    """Rnj-1: Gemma 3 where every layer sees everything."""
    types = layer_types(config, [], known=("full_attention",))
    return gemma3({**config, "layer_types": list(types)})


def sandwich_decoder(
    config: Config, every: int, norm: HeadNorm | None, caps: tuple[float, float], both_ways: bool = False
) -> ModelSpec:
    """every: of so many layers one sees everything, where the configuration does not say. norm: of q and k. caps: of scores and
    of logits, where the configuration does not say."""
    if not both_ways:
        causal_only(config)
    hidden, e = hidden_size(config), eps(config)
    head_dim = integer(config, "head_dim", default=256)
    norms = Norms(*(Norm(name, hidden, e, offset=1.0) for name in (
        "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm",
    )))  # fmt: skip
    absent = ["full_attention" if (i + 1) % every == 0 else "sliding_attention" for i in range(layer_count(config))]
    inner = mlp(config, act=act(config, "hidden_activation", "gelu_pytorch_tanh"))
    window = sliding_window(config)
    if both_ways and window:
        window = window // 2 + 1  # half of the file's window, in each direction
    kinds = {
        kind: Layer(
            attention(
                config, head_dim=head_dim, rope=rope(config, head_dim, kind=kind),
                causal=not both_ways, window=window if kind == "sliding_attention" else 0,
                scale=real(config, "query_pre_attn_scalar", 1e-6, 1e6, default=256.0) ** -0.5,
                softcap=_cap(config, "attn_logit_softcapping", caps[0]),
                bias=flag(config, "attention_bias", False), out_bias=flag(config, "attention_bias", False), norm=norm,
            ),
            inner, norms,
        )
        for kind in ("sliding_attention", "full_attention")
    }  # fmt: skip
    return decoder(
        config, [kinds[kind] for kind in layer_types(config, absent)],
        norm=Norm("norm", hidden, e, offset=1.0), tied=flag(config, "tie_word_embeddings", True), embed_scale=hidden**0.5,
        logit_softcap=_cap(config, "final_logit_softcapping", caps[1]),
    )  # fmt: skip


def causal_only(config: Config) -> None:
    if flag(config, "use_bidirectional_attention", False):
        raise UnsupportedModelError(
            "config.json: use_bidirectional_attention: this version serves causal models of this family"
        )


def _cap(config: Config, key: str, absent: float) -> float:
    """null = no cap, unlike an absent key."""
    return 0.0 if config.get(key, absent) is None else real(config, key, 0, 1e6, default=absent)
