"""What architectures with Mamba's layers have in common. Rates are written as -exp(A_log)."""

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
    """Of matrices of either generation; at: the name of the part that they are in."""
    return {
        "ssm_in": f"{at}.in_proj", "ssm_out": f"{at}.out_proj", "ssm_x": f"{at}.x_proj", "ssm_dt": f"{at}.dt_proj",
    }  # fmt: skip


def first(at: str) -> dict[str, Make]:
    """Of Mamba, whose channels have rates each."""

    def rates(tensor: GGUFTensor, config: Mapping[str, Any]) -> Sequence[tuple[str, GGUFPiece]]:
        return [(f"{at}.A_log", GGUFPiece(tensor.name, tensor.shape, value=logarithm))]

    return {
        "ssm_a": rates, "ssm_d": rename(f"{at}.D"), "ssm_conv1d.weight": conv1d_weight(f"{at}.conv1d.weight"),
        "ssm_conv1d.bias": rename(f"{at}.conv1d.bias"),
    }  # fmt: skip


def second(at: str) -> dict[str, Make]:
    """Of Mamba-2, whose heads have one. Files have some vectors in two dimensions."""
    return {
        "ssm_a": flatten(f"{at}.A_log", logarithm), "ssm_d": flatten(f"{at}.D"), "ssm_dt.bias": rename(f"{at}.dt_bias"),
        "ssm_norm.weight": flatten(f"{at}.norm.weight"), "ssm_conv1d.weight": conv1d_weight(f"{at}.conv1d.weight"),
        "ssm_conv1d.bias": rename(f"{at}.conv1d.bias"),
    }  # fmt: skip


def sizes(keys: Keys, files: GGUFFiles) -> dict[str, Any]:
    """Of Mamba-2, by the names that models have for them which have attention too."""
    inner, heads = keys.integer("ssm.inner_size", low=1), keys.integer("ssm.time_step_rank", low=1)
    return {
        "mamba_n_heads": heads, "mamba_d_head": inner // heads, "mamba_n_groups": keys.integer("ssm.group_count", low=1),
        "mamba_d_state": keys.integer("ssm.state_size", low=1), "mamba_d_conv": keys.integer("ssm.conv_kernel", low=2),
        "mamba_expand": inner / keys.integer("embedding_length", low=1),
        "mamba_conv_bias": anywhere(files, "ssm_conv1d.bias"), "mamba_proj_bias": anywhere(files, "ssm_in.bias"),
    }  # fmt: skip


def anywhere(files: GGUFFiles, name: str) -> bool:
    """Has some layer this tensor?"""
    return any(known.endswith(f".{name}") for known in files.tensors)


def period(keys: Keys, files: GGUFFiles, name: str) -> tuple[int, int]:
    """Of which layers have this tensor: every so many, beginning at one. None: a period that no layer reaches."""
    has = with_tensor(files, keys, name)
    if not any(has):
        return len(has) + 1, len(has)
    at = has.index(True)
    for every in range(at + 1, len(has) + 1):
        if has == [i % every == at for i in range(len(has))]:
            return every, at
    raise UnsupportedModelError(f"{files.path}: layers with {name} are not so many apart each: this version reads those alone")
