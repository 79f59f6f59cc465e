"""Shared by architectures with Mamba layers. Decay rates are stored as -exp(A_log)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from thalweg.checkpoint.gguf.architectures.common import Make, conv1d_weight, flatten, rename, with_tensor
from thalweg.checkpoint.gguf.files import GGUFFiles
from thalweg.checkpoint.gguf.header import GGUFTensor
from thalweg.checkpoint.gguf.keys import Keys
from thalweg.checkpoint.gguf.pieces import GGUFPiece, logarithm
from thalweg.errors import UnsupportedModelError


def names(at: str) -> dict[str, str]:
    """Names of the matrices of both generations. at: the name of their part in a layer."""
    return {
        "ssm_in": f"{at}.in_proj", "ssm_out": f"{at}.out_proj", "ssm_x": f"{at}.x_proj", "ssm_dt": f"{at}.dt_proj",
    }  # fmt: skip


def first(at: str) -> dict[str, Make]:
    """Conversions for Mamba, with several rates per channel."""

    def rates(tensor: GGUFTensor, config: Mapping[str, Any]) -> Sequence[tuple[str, GGUFPiece]]:
        return [(f"{at}.A_log", GGUFPiece(tensor.name, tensor.shape, value=logarithm))]

    return {
        "ssm_a": rates, "ssm_d": rename(f"{at}.D"), "ssm_conv1d.weight": conv1d_weight(f"{at}.conv1d.weight"),
        "ssm_conv1d.bias": rename(f"{at}.conv1d.bias"),
    }  # fmt: skip


def second(at: str) -> dict[str, Make]:
    """Conversions for Mamba-2, with one rate per head. Files store some vectors in two dimensions."""
    return {
        "ssm_a": flatten(f"{at}.A_log", logarithm), "ssm_d": flatten(f"{at}.D"), "ssm_dt.bias": rename(f"{at}.dt_bias"),
        "ssm_norm.weight": flatten(f"{at}.norm.weight"), "ssm_conv1d.weight": conv1d_weight(f"{at}.conv1d.weight"),
        "ssm_conv1d.bias": rename(f"{at}.conv1d.bias"),
    }  # fmt: skip


def sizes(keys: Keys, files: GGUFFiles) -> dict[str, Any]:
    """Sizes of Mamba-2, under the keys of hybrid models."""
    inner, heads = keys.integer("ssm.inner_size", low=1), keys.integer("ssm.time_step_rank", low=1)
    return {
        "mamba_n_heads": heads, "mamba_d_head": inner // heads, "mamba_n_groups": keys.integer("ssm.group_count", low=1),
        "mamba_d_state": keys.integer("ssm.state_size", low=1), "mamba_d_conv": keys.integer("ssm.conv_kernel", low=2),
        "mamba_expand": inner / keys.integer("embedding_length", low=1),
        "mamba_conv_bias": anywhere(files, "ssm_conv1d.bias"), "mamba_proj_bias": anywhere(files, "ssm_in.bias"),
    }  # fmt: skip


def anywhere(files: GGUFFiles, name: str) -> bool:
    """Does any layer have this tensor?"""
    return any(known.endswith(f".{name}") for known in files.tensors)


def period(keys: Keys, files: GGUFFiles, name: str) -> tuple[int, int]:
    """(period, first layer) of the layers with this tensor. Without such layers, the period and the first are beyond the last
    layer."""
    has = with_tensor(files, keys, name)
    if not any(has):
        return len(has) + 1, len(has)
    at = has.index(True)
    for every in range(at + 1, len(has) + 1):
        if has == [i % every == at for i in range(len(has))]:
            return every, at
    raise UnsupportedModelError(f"{files.path}: layers with {name} are not evenly spaced, which this version requires")
