"""gpt-oss: attention sinks, a sliding window on every other layer, experts with biases and gates clamped at 7. As published,
experts are in MXFP4. OpenAI's privacy filter classifies tokens: each layer has a window, and attends in both directions."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, flag, integer, real
from thalweg.errors import UnsupportedModelError
from thalweg.models.families.common import (
    attention,
    decoder,
    eps,
    layer_count,
    layer_types,
    pre_norms,
    rope,
    sliding_window,
    token_classes,
)
from thalweg.models.families.tails import attach_tail, bidirectional
from thalweg.models.spec import Attention, Layer, ModelSpec, MoE

ALPHA, LIMIT = 1.702, 7.0
"""Of its gates, as the op has them."""
YARN = {
    "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    "original_max_position_embeddings": 4096,
}  # fmt: skip


def gpt_oss(config: Config, *, interleaved: bool = False, alternate: bool = True) -> ModelSpec:
    """interleaved: rotary positions turn neighbours. alternate: rows of the experts' gate and up alternate in the files."""
    for key, value in (("swiglu_alpha", ALPHA), ("swiglu_limit", LIMIT)):
        if real(config, key, 0, 1e6, default=value) != value:
            raise UnsupportedModelError(f"config.json: {key}: this version has {value}, not {config[key]!r}")
    config = {"rope_theta": 150_000.0, "sliding_window": 128, **config, "rms_norm_eps": eps(config, default=1e-5)}
    if not (config.get("rope_parameters") or config.get("rope_scaling")):
        config = {**config, "rope_scaling": YARN}
    bias, norms, window = flag(config, "attention_bias", True), pre_norms(config), sliding_window(config)
    head_dim = integer(config, "head_dim", default=64)
    experts = integer(config, "num_local_experts", default=128)
    moe = MoE(
        experts=experts, top_k=integer(config, "num_experts_per_tok", high=experts, default=min(4, experts)),
        inner=integer(config, "intermediate_size"), act="swiglu_oai", renormalise=True, router="router",
        router_bias=True, fused=("experts.gate_up_proj", "experts.down_proj"), turned=True, alternate=alternate,
        biases=("experts.gate_up_proj_bias", "experts.down_proj_bias"),
    )  # fmt: skip
    kinds = {
        kind: Layer(
            attention(
                config, head_dim=head_dim, rope=rope(config, head_dim, interleaved=interleaved), window=wide, bias=bias,
                out_bias=bias, sinks="sinks",
            ), moe, norms,
        )
        for kind, wide in (("sliding_attention", window), ("full_attention", 0))
    }  # fmt: skip
    absent = ["full_attention" if i % 2 else "sliding_attention" for i in range(layer_count(config))]
    return decoder(config, [kinds[kind] for kind in layer_types(config, absent)])


def privacy_filter(config: Config) -> ModelSpec:
    """The window is the distance to the farthest token on either side, and counts the token itself here."""
    config = {**config, "layer_types": ["sliding_attention"] * layer_count(config)}
    spec = bidirectional(gpt_oss(config, interleaved=True, alternate=False))
    layers = []
    for layer in spec.layers:
        assert isinstance(layer.mixer, Attention)
        layers.append(replace(layer, mixer=replace(layer.mixer, window=layer.mixer.window + 1)))
    return attach_tail(replace(spec, layers=tuple(layers)), token_classes(config, out="score"))
