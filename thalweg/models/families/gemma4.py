"""Gemma 4 (text): sliding-window and full layers with different head sizes. The last ones may read an earlier layer's cache;
tokens may add a separate input to each layer, and an MLP may have a parallel MoE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from thalweg.checkpoint.config import Config, flag, integer, real
from thalweg.errors import CheckpointError, UnsupportedModelError
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
from thalweg.models.families.multimodal import BLIND
from thalweg.models.spec import (
    Attention,
    HeadNorm,
    Layer,
    LayerEnding,
    LayerInput,
    LayerInputs,
    ModelSpec,
    MoE,
    Names,
    Norm,
    Norms,
    ParallelMoE,
)

LOCAL, GLOBAL = "sliding_attention", "full_attention"
ROPES = {
    LOCAL: {"rope_type": "default", "rope_theta": 10_000.0},
    GLOBAL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
}
SKIP = tuple(
    root + part for root in ("", "model.") for part in ("audio_tower.", "vision_embedder.", "embed_vision.", "embed_audio.")
)
"""Tensors of other modalities, in addition to `multimodal.BLIND`."""
ROOTS = ("model.", "model.language_model.", "language_model.model.", "language_model.")
"""Possible prefixes of layers' names in files."""


def gemma4(config: Config) -> ModelSpec:
    return _model({"sliding_window": 512, "vocab_size_per_layer_input": 262_144, "hidden_size_per_layer_input": 256, **config})


def gemma4_unified(config: Config) -> ModelSpec:
    """Without inputs of layers and without mixtures."""
    return _model({"sliding_window": 1024, **config, "hidden_size_per_layer_input": 0, "enable_moe_block": False})


def _model(config: Config) -> ModelSpec:
    if config.get("use_bidirectional_attention") == "all":
        raise UnsupportedModelError(
            "config.json: use_bidirectional_attention: this version serves causal models of this family"
        )
    count, hidden = layer_count(config), hidden_size(config)
    absent = [GLOBAL if (i + 1) % 6 == 0 or i == count - 1 else LOCAL for i in range(count)]
    types = (*layer_types(config, absent)[:-1], GLOBAL)  # the last layer sees everything, whatever a file says
    reads = readers(types, integer(config, "num_kv_shared_layers", default=0))
    wide = 2 if flag(config, "use_double_wide_mlp", False) else 1
    width = integer(config, "hidden_size_per_layer_input", low=0, high=1 << 16)
    ending = LayerEnding(input=_input(config, width), scalar="layer_scalar")
    layers = []
    for i, (kind, source) in enumerate(zip(types, reads, strict=True)):
        inner = integer(config, "intermediate_size") * (1 if source is None else wide)
        dense = mlp(config, inner=inner, act=act(config, "hidden_activation", "gelu_pytorch_tanh"))
        mixer = replace(_attention(config, i, kind), reads=source)
        mixed = flag(config, "enable_moe_block", False)
        layers.append(Layer(mixer, _with_moe(config, dense) if mixed else dense, _norms(config, not mixed), around=ending))
    return decoder(
        config, layers, tied=flag(config, "tie_word_embeddings", True), embed_scale=hidden**0.5,
        logit_softcap=real(config, "final_logit_softcapping", default=0.0), names=names(reads),
        inputs=layer_inputs(config, width) if width else None,
    )  # fmt: skip


def readers(types: Sequence[str], shared: int) -> list[int | None]:
    """Per layer: the last layer of its type before the `shared` last ones, for those; None for the others."""
    first = len(types) - shared
    sources = {kind: i for i, kind in enumerate(types[: max(first, 0)])}
    missing = sorted(set(types[max(first, 0) :]) - sources.keys())
    if missing:
        raise CheckpointError(
            f"config.json: num_kv_shared_layers: no layer of type {missing[0]} is left before the last {shared} of {len(types)}"
        )
    return [None if i < first else sources[kind] for i, kind in enumerate(types)]


def names(reads: Sequence[int | None]) -> Names:
    """Files may have projections of keys and values that nothing computes with: those of layers that read others' caches."""
    unused = (
        f"{root}layers.{i}.self_attn.{part}."
        for i, source in enumerate(reads) if source is not None
        for root in ROOTS for part in ("k_proj", "v_proj", "k_norm", "v_norm")
    )  # fmt: skip
    return replace(BLIND, inside=((".router.scale", ".router.scale.weight"),), skip=(*BLIND.skip, *SKIP, *unused))


def layer_inputs(config: Config, width: int) -> LayerInputs:
    return LayerInputs(
        rows=integer(config, "vocab_size_per_layer_input", high=1 << 24), layers=layer_count(config), width=width,
        eps=eps(config), pad=integer(config, "pad_token_id", default=0),
    )  # fmt: skip


def _input(config: Config, width: int) -> LayerInput | None:
    if not width:
        return None
    return LayerInput(width=width, eps=eps(config), act=act(config, "hidden_activation", "gelu_pytorch_tanh"))


def _attention(config: Config, layer: int, kind: str) -> Attention:
    own, bias = _own(config, layer, kind), flag(config, "attention_bias", False)
    head_dim = integer(own, "head_dim", default=256)
    parameters = config.get("rope_parameters") or ROPES
    return attention(
        own, head_dim=head_dim, rope=rope({**config, "rope_parameters": parameters}, head_dim, kind=kind),
        window=sliding_window(config) if kind == LOCAL else 0, scale=1.0, bias=bias, out_bias=bias,
        norm=HeadNorm(eps(config), value=True), keys_as_values=kind == GLOBAL and flag(config, "attention_k_eq_v", False),
    )  # fmt: skip


def _own(config: Config, layer: int, kind: str) -> Mapping[str, Any]:
    """The configuration with this layer's sizes of heads in it: those of `per_layer_config`, or of layers that see everything
    the older keys for them."""
    section = config.get("per_layer_config")
    if section is not None:
        if not isinstance(section, dict):
            raise CheckpointError(f"config.json: per_layer_config: must be an object, not {section!r:.80}")
        numbered = {int(key): value for key, value in section.items() if str(key).isdecimal()}  # written as "05"
        if len(numbered) < len(section):
            raise UnsupportedModelError("config.json: per_layer_config: this version reads settings by the numbers of layers")
        if not all(isinstance(value, dict) for value in numbered.values()):
            raise CheckpointError("config.json: per_layer_config: must map the numbers of layers to objects")
        own = numbered.get(layer, {})
        odd = sorted(set(own) - {"head_dim", "num_key_value_heads"})
        if odd:
            raise UnsupportedModelError(f"config.json: per_layer_config: {odd[0]!r:.80} of layer {layer} is not supported")
        return {**config, **own}
    if kind == LOCAL:
        return config
    own = {"head_dim": integer(config, "global_head_dim", high=1 << 16, default=512)}
    kv = config.get("num_global_key_value_heads")
    return {**config, **own} | ({"num_key_value_heads": kv} if kv and flag(config, "attention_k_eq_v", False) else {})


def _norms(config: Config, before: bool) -> Norms:
    """before: with a norm of the feed-forward input."""
    hidden, e = hidden_size(config), eps(config)
    return Norms(
        mixer=Norm("input_layernorm", hidden, e), mixer_out=Norm("post_attention_layernorm", hidden, e),
        ffn=Norm("pre_feedforward_layernorm", hidden, e) if before else None,
        ffn_out=Norm("post_feedforward_layernorm", hidden, e),
    )  # fmt: skip


def _with_moe(config: Config, dense: Any) -> ParallelMoE:
    hidden, e = hidden_size(config), eps(config)
    experts = integer(config, "num_experts")
    moe = MoE(
        experts=experts, top_k=integer(config, "top_k_experts", high=experts),
        inner=integer(config, "moe_intermediate_size"), act=dense.act, renormalise=True, name="",
        router="router.proj", router_norm=Norm("router.scale", hidden, e), logit_scale=hidden**-0.5,
        expert_scale="router.per_expert_scale", entry=Norm("pre_feedforward_layernorm_2", hidden, e),
        fused=("experts.gate_up_proj", "experts.down_proj"),
    )  # fmt: skip
    return ParallelMoE(
        mlp=dense, moe=moe, mlp_in=Norm("pre_feedforward_layernorm", hidden, e),
        mlp_out=Norm("post_feedforward_layernorm_1", hidden, e), moe_out=Norm("post_feedforward_layernorm_2", hidden, e),
    )  # fmt: skip
