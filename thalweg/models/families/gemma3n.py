"""Gemma 3n (text): four residual streams (AltUp), a low-rank path next to attention (Laurel), per-layer inputs, sparse MLP
activations, KV sharing among the last layers."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, flag, integer, real
from thalweg.errors import CheckpointError
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
from thalweg.models.families.gemma4 import GLOBAL, LOCAL, layer_inputs, names, readers
from thalweg.models.spec import (
    MLP,
    AltUp,
    HeadNorm,
    Laurel,
    Layer,
    LayerInput,
    ModelSpec,
    Norm,
    Norms,
    SparseMLP,
    Streams,
)


def gemma3n(config: Config) -> ModelSpec:
    config = {
        "rope_theta": 1e6, "rope_local_base_freq": 1e4, "sliding_window": 512, "vocab_size_per_layer_input": 262_144, **config
    }  # fmt: skip
    count, hidden, e = layer_count(config), hidden_size(config), eps(config)
    types = layer_types(config, [GLOBAL if (i + 1) % 5 == 0 else LOCAL for i in range(count)])
    reads = readers(types, integer(config, "num_kv_shared_layers", default=15))
    head_dim, bias = integer(config, "head_dim", default=256), flag(config, "attention_bias", False)
    mixers = {
        kind: attention(
            config, head_dim=head_dim, rope=rope(config, head_dim, kind=kind), scale=1.0, bias=bias, out_bias=bias,
            window=sliding_window(config) if kind == LOCAL else 0, norm=HeadNorm(e, value=True),
        )
        for kind in (LOCAL, GLOBAL)
    }  # fmt: skip
    norms = Norms(*(Norm(name, hidden, e) for name in (
        "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm",
    )))  # fmt: skip
    width, streams = integer(config, "hidden_size_per_layer_input", high=1 << 16, default=256), _streams(config)
    around = AltUp(
        streams=streams, active=integer(config, "altup_active_idx", low=0, high=streams - 1, default=0), eps=e,
        input=LayerInput(width=width, eps=e, act=_act(config)), scaled=flag(config, "altup_correct_scale", True),
    )  # fmt: skip
    laurel = Laurel(rank=integer(config, "laurel_rank", high=1 << 16, default=64), eps=e)
    layers = [
        Layer(replace(mixers[kind], reads=source), _mlp(config, i), norms, laurel=laurel, around=around)
        for i, (kind, source) in enumerate(zip(types, reads, strict=True))
    ]
    capped = config.get("final_logit_softcapping", 30.0) is not None
    return decoder(
        config, layers, tied=flag(config, "tie_word_embeddings", True), embed_scale=hidden**0.5, streams=Streams(count=streams),
        logit_softcap=real(config, "final_logit_softcapping", default=30.0) if capped else 0.0,
        inputs=layer_inputs(config, width), names=names(reads),
    )  # fmt: skip


def _streams(config: Config) -> int:
    return integer(config, "altup_num_inputs", low=2, high=64, default=4)


def _act(config: Config) -> str:
    return act(config, "hidden_activation", "gelu_pytorch_tanh")


def _mlp(config: Config, layer: int) -> MLP:
    """Sizes and shares of zeros may be lists, with an entry for each layer."""
    count = layer_count(config)
    shares = config.get("activation_sparsity_pattern")
    if shares is None:
        shares = [0.95 if count > 10 and i < 10 else 0.0 for i in range(count)]
    share = real({"of a layer": _of(shares, layer, count, "activation_sparsity_pattern")}, "of a layer", 0, 0.999_999)
    inner = integer({"of a layer": _of(config.get("intermediate_size"), layer, count, "intermediate_size")}, "of a layer")
    result = mlp(config, inner=inner, act=_act(config))
    return SparseMLP(inner=inner, act=result.act, sparsity=share) if share else result


def _of(value: object, layer: int, count: int, key: str) -> object:
    if not isinstance(value, list):
        return value
    if len(value) != count:
        raise CheckpointError(f"config.json: {key}: must have an entry for each of the {count} layers")
    return value[layer]
