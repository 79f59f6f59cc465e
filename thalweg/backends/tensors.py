"""Queries by recorders of torch operations (the tensors in arguments and results, and their memory), and the work of
communicators on the parts that ranks hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor


def tensors_in(x: Any) -> Iterator[Tensor]:
    """Every tensor of a nest of mappings, lists and tuples, in order."""
    if isinstance(x, Tensor):
        yield x
    elif isinstance(x, Mapping):
        for v in x.values():
            yield from tensors_in(v)
    elif isinstance(x, list | tuple):
        for v in x:
            yield from tensors_in(v)


def memory_of(t: Tensor) -> int:
    """Equal for tensors that view the same memory."""
    return int(t.untyped_storage()._cdata)


def sum_parts(parts: Tensor) -> Tensor:
    """[n, ...] -> the sum of the n parts, in order. Types of less than float32 are summed in that."""
    kind = torch.promote_types(parts.dtype, torch.float32) if parts.is_floating_point() else parts.dtype
    total = parts[0].to(kind, copy=True)
    for part in parts[1:]:
        total += part
    return total.to(parts.dtype)


def join_parts(parts: Tensor, dim: int) -> Tensor:
    """[n, ...] -> the n parts joined along `dim` of one part."""
    return torch.cat(parts.unbind(0), dim)
