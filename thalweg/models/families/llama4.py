"""Llama 4: chunked attention on three of four layers, QK-norm after RoPE. The fourth has full attention and NoPE. Experts'
inputs are multiplied by their weights, with one shared expert."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, flag, integer, real
from thalweg.errors import CheckpointError
from thalweg.models.families.common import act, attention, decoder, eps, layer_count, layer_types, mlp, pre_norms, rope
from thalweg.models.families.multimodal import seeing
from thalweg.models.families.towers.llama4 import llama4 as tower
from thalweg.models.spec import MLP, Attention, HeadNorm, Layer, ModelSpec, MoE

CHUNKED = "chunked_attention"


def llama4(config: Config) -> ModelSpec:
    config = {"rope_theta": 500_000.0, **config, "rms_norm_eps": eps(config, default=1e-5)}
    count, norms = layer_count(config), pre_norms(config)
    every = integer(config, "no_rope_layer_interval", default=4)
    turns = _numbers(config, "no_rope_layers", [int((i + 1) % every != 0) for i in range(count)])
    if len(turns) != count:
        raise CheckpointError(f"config.json: no_rope_layers: must have a number for each of the {count} layers")
    types = layer_types(config, [CHUNKED if t else "full_attention" for t in turns], known=(CHUNKED, "full_attention"))
    step = integer(config, "interleave_moe_layer_step", default=1)
    section = config.get("moe_layers")
    mixed = set(range(step - 1, count, step) if section is None else _numbers(config, "moe_layers", []))
    parts: dict[bool, MLP | MoE] = {True: _mixture(config), False: _dense(config)}
    layers = [
        Layer(_attention(config, kind == CHUNKED, bool(turned)), parts[i in mixed], norms)
        for i, (kind, turned) in enumerate(zip(types, turns, strict=True))
    ]
    return seeing(decoder(config, layers), config, tower)


def _numbers(config: Config, key: str, absent: list[int]) -> list[int]:
    """A list of integers. An empty or null one counts as absent."""
    value = config.get(key) or absent
    if not isinstance(value, list) or not all(isinstance(n, int) for n in value):
        raise CheckpointError(f"config.json: {key}: must be a list of numbers, not {value!r:.80}")
    return value


def _attention(config: Config, chunked: bool, turned: bool) -> Attention:
    head_dim, bias = integer(config, "head_dim", default=128), flag(config, "attention_bias", False)
    unlimited = "attention_chunk_size" in config and config["attention_chunk_size"] is None
    chunk = integer(config, "attention_chunk_size", default=8192) if chunked and not unlimited else 0
    result = attention(
        config, head_dim=head_dim, rope=rope(config, head_dim, interleaved=True), chunk=chunk, bias=bias, out_bias=bias,
        norm=HeadNorm(eps(config), after=True, weight=False) if turned and flag(config, "use_qk_norm", True) else None,
    )  # fmt: skip
    if turned:
        return result
    tuned = config.get("attn_temperature_tuning", True)  # a number in the first files
    beta, every = real(config, "attn_scale", 0, 1e6, default=0.1), integer(config, "floor_scale", default=8192)
    return replace(result, rope=None, grows=(beta, every) if tuned else None, first=1)


def _dense(config: Config) -> MLP:
    return mlp(config, inner=integer(config, "intermediate_size_mlp", high=1 << 24, default=16_384), name="feed_forward")


def _mixture(config: Config) -> MoE:
    experts = integer(config, "num_local_experts", default=16)
    inner = integer(config, "intermediate_size")
    return MoE(
        experts=experts, top_k=integer(config, "num_experts_per_tok", high=experts, default=1), inner=inner, act=act(config),
        scores="sigmoid", inward=True, name="feed_forward", router="router", shared=mlp(config, name="shared_expert"),
        fused=("experts.gate_up_proj", "experts.down_proj"), turned=True,
    )  # fmt: skip
