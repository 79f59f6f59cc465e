"""Zamba 2: Mamba-2 layers, and transformer blocks that several layers share, with additions of low rank by layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from thalweg.checkpoint.config import Config, flag, integer, real
from thalweg.errors import UnsupportedModelError
from thalweg.models.families.common import act, attention, decoder, eps, hidden_size, layer_count, mlp, rope
from thalweg.models.families.mamba2 import hybrid
from thalweg.models.spec import (
    Attention,
    Layer,
    LowRankMLP,
    LowRankProduct,
    Mamba2,
    MemoryPart,
    MemoryStreams,
    ModelSpec,
    Names,
    Norm,
    Norms,
)

SCAN, SHARED = ("linear_attention", "mamba"), "hybrid"
BLOCK = "shared_transformer."
ABSENT = [*["mamba"] * 6, *[SHARED, *["mamba"] * 5] * 6, SHARED, *["mamba"] * 4, SHARED, *["mamba"] * 3, SHARED, *["mamba"] * 2]
"""Types of layers in files without `layers_block_type`."""


def zamba2(config: Config) -> ModelSpec:
    if flag(config, "use_long_context", False):
        raise UnsupportedModelError("config.json: use_long_context: this version serves Zamba 2 without it")
    config = {"intermediate_size": 4 * hidden_size(config), **config, "rms_norm_eps": eps(config, default=1e-5)}
    kinds = config.get("layers_block_type") or config.get("layer_types") or ABSENT
    count, blocks = layer_count(config), integer(config, "num_mem_blocks", default=1)
    if not isinstance(kinds, list) or len(kinds) != count or any(kind not in (*SCAN, SHARED) for kind in kinds):
        raise UnsupportedModelError(f"config.json: layers_block_type: must be a list of {count} names, mamba or hybrid")
    shared = [i for i, kind in enumerate(kinds) if kind == SHARED]
    first = {i: shared[at % blocks] for at, i in enumerate(shared)}
    layers: list[Layer] = []
    numbers: list[int] = []
    for i in range(count):
        if i in first:
            layers += _block(config, shared.index(i))
            numbers += [first[i]] * 2
        layers.append(_scan(config, i in first))
        numbers.append(i)
    copies = tuple(f"model.layers.{i}.{BLOCK}" for i, at in first.items() if at != i)
    return decoder(
        config, layers, norm=Norm("final_layernorm", hidden_size(config), eps(config)), numbers=tuple(numbers),
        streams=MemoryStreams(), tied=flag(config, "tie_word_embeddings", True), names=Names(skip=copies),
    )  # fmt: skip


def _scan(config: Config, after_block: bool) -> Layer:
    heads, bias = integer(config, "n_mamba_heads", high=1 << 16, default=8), flag(config, "add_bias_linear", False)
    named = {
        **config, "mamba_n_heads": heads, "mamba_d_head": "auto", "mamba_proj_bias": bias, "mamba_d_state":
        integer(config, "mamba_d_state", default=64), "mamba_n_groups": integer(config, "mamba_ngroups", default=1),
        "time_step_limit": [real(config, "time_step_min", 0, 1e6, default=0.001), None], "hidden_act": "silu",
    }  # fmt: skip
    name = "mamba_decoder." if after_block else ""
    mixer: Mamba2 = hybrid(named, name=f"{name}mamba", eps=1e-5)
    norms = Norms(mixer=Norm(f"{name}input_layernorm", hidden_size(config), eps(config)))
    return Layer(mixer, None, norms, around=MemoryPart(role="scan", linear="linear" if after_block else ""))


def _block(config: Config, index: int) -> Iterator[Layer]:
    """The parts of a shared block. index: of its use."""
    hidden, e, rank = hidden_size(config), eps(config), integer(config, "adapter_rank", default=128)
    heads = integer(config, "num_attention_heads")
    head_dim, bias = 2 * hidden // heads, flag(config, "add_bias_linear", False)
    low = LowRankProduct(rank, "linear_{}_adapter_list", index) if flag(config, "use_shared_attention_adapter", False) else None
    turned = rope(config, head_dim)
    mixer: Attention = attention(
        config, head_dim=head_dim, rope=turned, scale=(head_dim / 2) ** -0.5, inputs=2 * hidden, low_rank=low,
        name=f"{BLOCK}self_attn",
    )  # fmt: skip
    if not flag(config, "use_mem_rope", False):
        mixer = replace(mixer, rope=None)
    inner = mlp(config, act=act(config, default="gelu"), name=f"{BLOCK}feed_forward", fused="gate_up_proj", bias=bias)
    part = LowRankMLP(inner=inner, low=LowRankProduct(rank, "gate_up_proj_adapter_list", index))
    yield Layer(mixer, None, Norms(mixer=Norm(f"{BLOCK}input_layernorm", 2 * hidden, e)), around=MemoryPart(role="attend"))
    yield Layer(None, part, Norms(ffn=Norm(f"{BLOCK}pre_ff_layernorm", hidden, e)), around=MemoryPart(role="feed"))
