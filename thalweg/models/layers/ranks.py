"""Values that a layer computes of all heads at once, where ranks divide the heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from thalweg.hal.comm import Communicator
from thalweg.hal.step import Array

if TYPE_CHECKING:
    from thalweg.models.layers.norm import BoundNorm


class HeadParts:
    """Values of `heads` heads, which every rank has a part of. With fewer heads than ranks, several ranks have the same one."""

    def __init__(self, comm: Communicator, heads: int) -> None:
        self._comm, self._heads = comm, heads
        self._copies = max(1, comm.size // heads)
        self.whole = comm.size == 1

    def gather(self, x: Array) -> Array:
        """[T, this rank's values] -> [T, values of all heads]."""
        x = self._comm.all_gather(x.contiguous())
        return x if self._copies == 1 else x.unflatten(-1, (self._heads, self._copies, -1))[:, :, 0].flatten(-2)

    def part(self, x: Array) -> Array:
        """[..., values of all heads] -> [..., this rank's values]."""
        if self._copies > 1:
            x = x.unflatten(-1, (self._heads, -1)).repeat_interleave(self._copies, -2).flatten(-2)
        return self._comm.part(x).contiguous()


class GatheredNorm:
    """x [T, this rank's values] -> the same shape, normed over all heads."""

    def __init__(self, norm: BoundNorm, parts: HeadParts) -> None:
        self._norm, self._parts = norm, parts

    def __call__(self, p: Mapping[str, Any], x: Array) -> Array:
        return self._parts.part(self._norm(p, self._parts.gather(x)))
