"""Collectives inside a step. The size is a Python int. The rank is not visible, so a step is the same on every rank."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields

from thalweg.hal.step import Array


class Communicator(ABC):
    """The ranks that share one model. Every call is collective: all ranks make the same calls in the same order."""

    size: int

    @abstractmethod
    def all_reduce(self, x: Array) -> Array:
        """The sum over ranks, same shape. May reuse x's memory: use the result."""

    @abstractmethod
    def all_gather(self, x: Array, dim: int = -1) -> Array:
        """Every rank's x joined along `dim`, in rank order."""

    def reduce_scatter(self, x: Array, dim: int = -1) -> Array:
        """Optional. Sequence parallelism needs it."""
        raise NotImplementedError(f"{type(self).__name__} has no reduce_scatter")

    def all_to_all(self, x: Array, dim: int = 0) -> Array:
        """Optional. Expert parallelism needs it."""
        raise NotImplementedError(f"{type(self).__name__} has no all_to_all")


class Solo(Communicator):
    """One rank: every collective is the identity."""

    size = 1

    def all_reduce(self, x: Array) -> Array:
        return x

    def all_gather(self, x: Array, dim: int = -1) -> Array:
        return x

    def reduce_scatter(self, x: Array, dim: int = -1) -> Array:
        return x

    def all_to_all(self, x: Array, dim: int = 0) -> Array:
        return x


SOLO = Solo()


@dataclass(frozen=True, slots=True)
class Mesh:
    """The axes along which ranks divide a model, each with its communicator."""

    tensor: Communicator = SOLO
    """Ranks that compute a share of every layer."""
    expert: Communicator = SOLO
    """Ranks that compute different experts, whole."""
    stage: Communicator = SOLO
    """Ranks that compute different layers, in order."""
    data: Communicator = SOLO
    """Ranks that compute different sequences."""

    def sizes(self) -> dict[str, int]:
        """Ranks of each axis, by its name."""
        return {axis.name: getattr(self, axis.name).size for axis in fields(self)}
