"""What recorders of torch operations ask of arguments and results: which tensors are in them, and whose memory they use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

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
    """Equal for tensors that are views of the same memory."""
    return int(t.untyped_storage()._cdata)
