"""HunYuan, dense and MoE: Llama with QK-norm after RoPE."""

from __future__ import annotations

from collections.abc import Callable

from thalweg.checkpoint.config import Config, flag, integer, real, rope_parameters
from thalweg.errors import UnsupportedModelError
from thalweg.models.families.common import act, attention, decoder, eps, head_size, layer_count, mlp, pre_norms, rope
from thalweg.models.spec import MLP, HeadNorm, Layer, ModelSpec, MoE, Rope


def hunyuan(config: Config) -> ModelSpec:
    return _model(config, mlp)


def hunyuan_moe(config: Config) -> ModelSpec:
    return _model(config, _mixture)


def _model(config: Config, part: Callable[[Config], MLP | MoE]) -> ModelSpec:
    config = {**config, "rms_norm_eps": eps(config, default=1e-5)}
    turned, bias = _rope(config, head_size(config)), flag(config, "attention_bias", False)
    norm = HeadNorm(eps(config), after=True, q="query_layernorm", k="key_layernorm")
    layer = Layer(attention(config, rope=turned, bias=bias, out_bias=bias, norm=norm), part(config), pre_norms(config))
    return decoder(config, [layer] * layer_count(config))


def _mixture(config: Config) -> MoE:
    experts = _same(config, "num_experts")
    inner = integer(config, "intermediate_size")
    return MoE(
        experts=experts, top_k=min(_same(config, "moe_topk"), experts), act=act(config), renormalise=True, router="gate.wg",
        inner=_same(config, "moe_intermediate_size", inner),
        shared=mlp(config, inner=inner * _same(config, "num_shared_expert"), name="shared_mlp"),
    )  # fmt: skip


def _same(config: Config, key: str, default: int = 1) -> int:
    """A number, or a list of one per layer, which must be equal."""
    section = config.get(key)
    if isinstance(section, list):
        if len(set(map(str, section))) != 1:
            raise UnsupportedModelError(f"config.json: {key}: this version has the same for every layer")
        config = {**config, key: section[0]}
    return integer(config, key, high=1 << 24, default=default)


def _rope(config: Config, dim: int) -> Rope:
    """Their "dynamic" scaling with an `alpha` is a larger base, whatever the length."""
    section = rope_parameters(config)
    if section["rope_type"] != "dynamic" or not section.get("alpha"):
        return rope(config, dim)
    base = section["rope_theta"] * real(section, "alpha", 1e-3, 1e9, where="rope_parameters") ** (dim / (dim - 2))
    larger = {"rope_type": "default", "rope_theta": base}
    return rope({**config, "rope_scaling": None, "rope_parameters": larger}, dim, keys=("alpha",))
