"""Jamba: Mamba layers with inner norms, one NoPE attention layer per several layers, an MoE on every other layer."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, flag, integer
from thalweg.errors import CheckpointError
from thalweg.models.families.common import act, attention, decoder, eps, hidden_size, layer_count, mlp
from thalweg.models.families.mamba import SILU, inner_size, step_rank, taps
from thalweg.models.spec import MLP, Attention, Layer, Mamba, ModelSpec, MoE, Norm, Norms


def jamba(config: Config) -> ModelSpec:
    hidden, e = hidden_size(config), eps(config)
    norms = Norms(mixer=Norm("input_layernorm", hidden, e), ffn=Norm("pre_ff_layernorm", hidden, e))
    heads = replace(attention(config), rope=None)
    scan = Mamba(
        inner=inner_size(config, "mamba_expand"), state=integer(config, "mamba_d_state", default=16),
        rank=step_rank(config, "mamba_dt_rank", hidden), kernel=taps(config, "mamba_d_conv"), act=act(config, known=SILU),
        bias=flag(config, "mamba_proj_bias", False), conv_bias=flag(config, "mamba_conv_bias", True),
        norms=("dt_layernorm", "b_layernorm", "c_layernorm"), eps=e, name="mamba",
    )  # fmt: skip
    experts = integer(config, "num_experts", default=16)
    dense = mlp(config, name="feed_forward")
    parts: list[MLP | MoE] = [
        MoE(
            experts=experts, top_k=integer(config, "num_experts_per_tok", high=experts, default=min(2, experts)),
            inner=dense.inner, act=dense.act, name="feed_forward", router="router",
        )
        if experts > 1 and mixed
        else dense
        for mixed in _every(config, "expert_layer", 2, 1)
    ]  # fmt: skip
    mixers: list[Attention | Mamba] = [heads if attends else scan for attends in _every(config, "attn_layer", 8, 4)]
    layers = [Layer(mixer, part, norms) for mixer, part in zip(mixers, parts, strict=True)]
    return decoder(config, layers, norm=Norm("final_layernorm", hidden, e))


def _every(config: Config, what: str, period: int, offset: int) -> list[bool]:
    """Of each layer: is it the one of its period?"""
    period = integer(config, f"{what}_period", high=1 << 16, default=period)
    offset = integer(config, f"{what}_offset", low=0, high=1 << 16, default=offset)
    if offset >= period:
        raise CheckpointError(f"config.json: {what}_offset ({offset}) must be less than {what}_period ({period})")
    return [i % period == offset for i in range(layer_count(config))]
