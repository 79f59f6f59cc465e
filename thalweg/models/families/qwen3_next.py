"""Qwen3-Next: gated delta nets, gated attention with quarter-rotary RoPE on every fourth layer, (1 + w) RMSNorm, an MoE with a
shared expert. And Qwen3.5 (text), dense or MoE, with separate projection tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from thalweg.checkpoint.config import Config, flag, integer
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
)
from thalweg.models.families.nextn import MODULE, attach_mtp
from thalweg.models.families.qwen3 import dense_layers
from thalweg.models.spec import MLP, Attention, DeltaNet, HeadNorm, Layer, ModelSpec, MoE, Names, Norm, Norms

NAMES = Names(replace=(("model.language_model.", "model."),), skip=(MODULE, "model.visual."))
"""Of Qwen3.5."""


def qwen3_next(config: Config) -> ModelSpec:
    """Layers of `mlp_only_layers`, and all but every `decoder_sparse_step`-th, have a plain MLP."""
    dense, step = dense_layers(config), integer(config, "decoder_sparse_step", default=1)
    plain = [i in dense or (i + 1) % step > 0 for i in range(layer_count(config))]
    parts: list[MLP | MoE] = [mlp(config) if alone else build_mixture(config) for alone in plain]
    config = {"num_nextn_predict_layers": 1, **config}
    return _hybrid(config, parts, grouped=True, names=Names(skip=(MODULE,)), modules="num_nextn_predict_layers")


def qwen3_5(config: Config) -> ModelSpec:
    return _hybrid(config, [mlp(config)] * layer_count(config), grouped=False, names=NAMES, modules="mtp_num_hidden_layers")


def qwen3_5_moe(config: Config) -> ModelSpec:
    moe = replace(
        build_mixture({"num_experts": 256, "num_experts_per_tok": 8, **config}), renormalise=True,
        fused=("experts.gate_up_proj", "experts.down_proj"),
    )  # fmt: skip
    return _hybrid(config, [moe] * layer_count(config), grouped=False, names=NAMES, modules="mtp_num_hidden_layers")


def _hybrid(config: Config, parts: Sequence[MLP | MoE], *, grouped: bool, names: Names, modules: str) -> ModelSpec:
    """parts: the feed-forward part of each layer. modules: key of the number of modules for multi-token prediction. The layer
    of a module has full attention, and the feed-forward part of most layers."""
    hidden, e = hidden_size(config), eps(config)
    every = integer(config, "full_attention_interval", default=4)
    absent = ["linear_attention" if (i + 1) % every else "full_attention" for i in range(layer_count(config))]
    types = layer_types(config, absent, known=("full_attention", "linear_attention"))
    mixers: dict[str, Attention | DeltaNet] = {
        "linear_attention": build_delta(config, grouped), "full_attention": build_attention(config),
    }  # fmt: skip
    norms = Norms(
        mixer=Norm("input_layernorm", hidden, e, offset=1.0), ffn=Norm("post_attention_layernorm", hidden, e, offset=1.0)
    )
    layers = [Layer(mixers[kind], part, norms) for kind, part in zip(types, parts, strict=True)]
    spec = decoder(config, layers, norm=Norm("norm", hidden, e, offset=1.0), names=names)
    if not integer(config, modules, low=0, default=0):
        return spec
    part = next((p for p in parts if isinstance(p, MoE)), parts[0])
    return attach_mtp(spec, Layer(mixers["full_attention"], part, norms), e, offset=1.0)


def build_delta(config: Config, grouped: bool) -> DeltaNet:
    def size(name: str, default: int) -> int:
        return integer(config, f"linear_{name}", high=1 << 16, default=default)

    keys, values = size("num_key_heads", 16), size("num_value_heads", 32)
    if values % keys:
        raise CheckpointError(
            f"config.json: linear_num_value_heads ({values}) must be a multiple of linear_num_key_heads ({keys})"
        )
    return DeltaNet(
        key_heads=keys, value_heads=values, key_dim=size("key_head_dim", 128), value_dim=size("value_head_dim", 128),
        kernel=integer(config, "linear_conv_kernel_dim", default=4), eps=eps(config), act=act(config),
        grouped=grouped,
    )  # fmt: skip


def build_attention(config: Config) -> Attention:
    bias, head_dim = flag(config, "attention_bias", False), integer(config, "head_dim", default=256)
    turned = rope({"partial_rotary_factor": 0.25, **config}, head_dim, partial=True)
    # Positions of text are the same along each of the axes that images have.
    turned = replace(turned, parameters={k: v for k, v in turned.parameters.items() if not k.startswith("mrope_")})
    return attention(
        config, head_dim=head_dim, rope=turned, gated=True, bias=bias, out_bias=bias, norm=HeadNorm(eps(config), offset=1.0)
    )


def build_mixture(config: Config) -> MoE:
    experts = integer(config, "num_experts", default=512)
    inner = integer(config, "shared_expert_intermediate_size", default=512)
    return MoE(
        experts=experts, top_k=integer(config, "num_experts_per_tok", high=experts, default=min(10, experts)),
        inner=integer(config, "moe_intermediate_size", default=512), act=act(config),
        renormalise=flag(config, "norm_topk_prob", True),
        shared=mlp(config, inner=inner, name="shared_expert"), shared_gate="shared_expert_gate",
    )  # fmt: skip
