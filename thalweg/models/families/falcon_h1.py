"""Falcon-H1: Mamba-2 and attention in parallel in every layer, with multipliers on every projection."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, flag, integer, real
from thalweg.errors import CheckpointError
from thalweg.models.families.common import attention, decoder, eps, head_size, hidden_size, layer_count, mlp
from thalweg.models.families.granite import multiplier
from thalweg.models.families.mamba2 import hybrid
from thalweg.models.spec import Layer, ModelSpec, Norm, Norms


def falcon_h1(config: Config) -> ModelSpec:
    config = {**config, "rms_norm_eps": eps(config, default=1e-5)}
    hidden, e, bias = hidden_size(config), eps(config), flag(config, "attention_bias", False)
    scale = head_size(config) ** -0.5 * multiplier(config, "key_multiplier")
    heads = attention(config, bias=bias, out_bias=bias, scale=scale)
    z, x, b, c, dt = _list(config, "ssm_multipliers", 5)
    scan = hybrid(
        config, inner=integer(config, "mamba_d_ssm", high=1 << 24) if config.setdefault("mamba_d_ssm", 1024) else 0,
        norm=flag(config, "mamba_rms_norm", False), norm_first=flag(config, "mamba_norm_before_gate", True),
        out_bias=flag(config, "projectors_bias", False), scales=(z, x, b, c, dt),
    )  # fmt: skip
    gate, down = _list(config, "mlp_multipliers", 2)
    layer = Layer(
        (scan, heads), mlp(config, bias=flag(config, "mlp_bias", False), name="feed_forward", gate_scale=gate),
        Norms(mixer=Norm("input_layernorm", hidden, e), ffn=Norm("pre_ff_layernorm", hidden, e)),
        mixer_scales=(
            (multiplier(config, "ssm_in_multiplier"), multiplier(config, "ssm_out_multiplier")),
            (multiplier(config, "attention_in_multiplier"), multiplier(config, "attention_out_multiplier")),
        ),
        ffn_scale=down,
    )  # fmt: skip
    return decoder(
        config, [layer] * layer_count(config), norm=Norm("final_layernorm", hidden, e),
        embed_scale=multiplier(config, "embedding_multiplier"), logit_scale=multiplier(config, "lm_head_multiplier"),
    )  # fmt: skip


def _list(config: Config, key: str, count: int) -> list[float]:
    section = config.get(key)
    if section is None:
        return [1.0] * count
    if not isinstance(section, list) or len(section) != count:
        raise CheckpointError(f"config.json: {key}: must be a list of {count} numbers")
    return [real({"v": value}, "v", 1e-6, 1e6, where=f"config.json: {key}") for value in section]
