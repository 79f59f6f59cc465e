"""Zamba: Mamba layers with several heads, and one transformer block that several layers share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from thalweg.checkpoint.config import Config, flag, integer, real
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models.families.common import act, attention, decoder, eps, hidden_size, layer_count, mlp
from thalweg.models.families.mamba import SILU, step_rank, taps
from thalweg.models.spec import HeadMamba, Layer, MemoryPart, MemoryStreams, ModelSpec, Names, Norm, Norms

SCAN, SHARED = ("linear_attention", "mamba"), "hybrid"
BLOCK = "shared_transf."


def zamba(config: Config) -> ModelSpec:
    if flag(config, "mamba_proj_bias", False):
        raise UnsupportedModelError("config.json: mamba_proj_bias: this version serves Zamba without biases of projections")
    config = {**config, "rms_norm_eps": eps(config, default=1e-5)}
    count, period = layer_count(config), integer(config, "attn_layer_period", default=6)
    offset = integer(config, "attn_layer_offset", low=0, high=period - 1, default=4)
    absent = ["mamba", "mamba", SHARED, *(SHARED if i % period == offset else "mamba" for i in range(count - 3))][:count]
    kinds = config.get("layers_block_type") or config.get("layer_types") or absent
    if not isinstance(kinds, list) or len(kinds) != count or any(kind not in (*SCAN, SHARED) for kind in kinds):
        raise UnsupportedModelError(f"config.json: layers_block_type: must be a list of {count} names, mamba or hybrid")
    shared = [i for i, kind in enumerate(kinds) if kind == SHARED]
    layers: list[Layer] = []
    numbers: list[int] = []
    for i in range(count):
        if i in shared:
            layers += _block(config)
            numbers += [shared[0]] * 2
        layers.append(_scan(config, i in shared))
        numbers.append(i)
    copies = tuple(f"model.layers.{i}.{BLOCK}" for i in shared[1:])
    return decoder(
        config, layers, norm=Norm("final_layernorm", hidden_size(config), eps(config)), numbers=tuple(numbers),
        streams=MemoryStreams(), tied=flag(config, "tie_word_embeddings", True), names=Names(skip=copies),
    )  # fmt: skip


def _scan(config: Config, after_block: bool) -> Layer:
    hidden, heads = hidden_size(config), integer(config, "n_mamba_heads", high=1 << 16, default=2)
    inner = int(real(config, "mamba_expand", 1e-3, 1e3, default=2.0) * hidden)
    if inner % heads:
        raise CheckpointError(f"config.json: n_mamba_heads: {heads} do not divide {inner} channels")
    name = "mamba_decoder." if after_block else ""
    mixer = HeadMamba(
        heads=heads, head_dim=inner // heads, state=integer(config, "mamba_d_state", default=16),
        rank=step_rank(config, "mamba_dt_rank", hidden), kernel=taps(config, "mamba_d_conv"),
        act=act(config, "hidden_mamba_act", "silu", SILU), conv_bias=flag(config, "mamba_conv_bias", True), name=f"{name}mamba",
    )  # fmt: skip
    norms = Norms(mixer=Norm(f"{name}input_layernorm", hidden, eps(config)))
    return Layer(mixer, None, norms, around=MemoryPart(role="scan", linear="linear" if after_block else ""))


def _block(config: Config) -> Iterator[Layer]:
    """The parts of the shared block."""
    hidden, e = hidden_size(config), eps(config)
    inputs = integer(config, "attention_hidden_size", default=2 * hidden)
    size = integer(config, "attention_head_dim", default=2 * hidden // integer(config, "num_attention_heads"))
    if inputs != 2 * hidden:
        raise UnsupportedModelError(f"config.json: attention_hidden_size: must be twice hidden_size, {2 * hidden}")
    mixer = replace(
        attention(config, head_dim=size, scale=(size / 2) ** -0.5, inputs=inputs, name=f"{BLOCK}self_attn"), rope=None
    )
    inner = mlp(config, act=act(config, default="gelu"), name=f"{BLOCK}feed_forward")
    yield Layer(mixer, None, Norms(mixer=Norm(f"{BLOCK}input_layernorm", inputs, e)), around=MemoryPart(role="attend"))
    yield Layer(None, inner, Norms(ffn=Norm(f"{BLOCK}pre_ff_layernorm", hidden, e)), around=MemoryPart(role="feed"))
