"""Mamba-2 and Codestral Mamba: state-space duality (SSD) layers without attention or MLPs."""

from __future__ import annotations

from math import inf
from typing import Any

from thalweg.checkpoint.config import Config, flag, integer, real
from thalweg.errors import CheckpointError
from thalweg.models.families.common import act, eps, hidden_size
from thalweg.models.families.mamba import SILU, backbone, inner_size, taps
from thalweg.models.spec import Mamba2, ModelSpec


def mamba2(config: Config) -> ModelSpec:
    bias = flag(config, "use_bias", False)
    heads = integer(config, "num_heads", high=1 << 16, default=128)
    head_dim = integer(config, "head_dim", default=64)
    if heads * head_dim != inner_size(config, "expand"):
        raise CheckpointError(
            f"config.json: num_heads ({heads}) of head_dim ({head_dim}) are not expand * hidden_size "
            f"({inner_size(config, 'expand')})"
        )
    mixer = Mamba2(
        heads=heads, head_dim=head_dim, groups=shared_by(config, "n_groups", heads, 8),
        state=integer(config, "state_size", default=128), kernel=taps(config, "conv_kernel"),
        eps=real(config, "layer_norm_epsilon", default=1e-5), act=act(config, known=SILU), bias=bias, out_bias=bias,
        conv_bias=flag(config, "use_conv_bias", True), limits=limits(config),
    )  # fmt: skip
    return backbone(config, mixer, tied=False)


def hybrid(config: Config, inner: int = 0, **more: Any) -> Mamba2:
    """The same as models name its settings that have attention too. inner: values of all heads; 0 = as `mamba_expand` says.
    more: fields that the family decides."""
    inner = inner or int(real(config, "mamba_expand", 1e-3, 1e3, default=2.0) * hidden_size(config))
    heads = integer(config, "mamba_n_heads", high=1 << 16, default=128)
    section = config.get("mamba_d_head", "auto")
    head_dim = inner // heads if section == "auto" else integer(config, "mamba_d_head", high=1 << 16, default=inner // heads)
    if heads * head_dim != inner:
        raise CheckpointError(
            f"config.json: mamba_n_heads ({heads}) of mamba_d_head ({head_dim}) are not the {inner} values of the layer"
        )
    bias = flag(config, "mamba_proj_bias", False)
    given: dict[str, Any] = {
        "heads": heads, "head_dim": head_dim, "groups": shared_by(config, "mamba_n_groups", heads, 1),
        "state": integer(config, "mamba_d_state", default=256), "kernel": taps(config, "mamba_d_conv"),
        "eps": eps(config), "act": act(config, known=SILU), "bias": bias, "out_bias": bias,
        "conv_bias": flag(config, "mamba_conv_bias", True), "limits": limits(config), "name": "mamba",
    }  # fmt: skip
    return Mamba2(**(given | more))


def shared_by(config: Config, key: str, heads: int, default: int) -> int:
    """Groups of heads."""
    groups = integer(config, key, high=heads, default=default)
    if heads % groups:
        raise CheckpointError(f"config.json: {key}: {groups} groups do not divide {heads} heads")
    return groups


def limits(config: Config) -> tuple[float, float]:
    """`time_step_limit`: the least and the greatest step; null = none."""
    section = config.get("time_step_limit")
    if section is None:
        return 0.0, inf
    if not isinstance(section, list | tuple) or len(section) != 2:
        raise CheckpointError("config.json: time_step_limit: must be two numbers, the least and the greatest step")
    low, high = ({"v": value} for value in section)
    where = "config.json: time_step_limit"
    return real(low, "v", 0, 1e30, default=0.0, where=where), real(high, "v", 0, 1e30, default=inf, where=where)
