"""Collectives inside a step. The size is a Python int. The rank is not visible, so a step is the same on every rank."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from thalweg.hal.step import Array

if TYPE_CHECKING:
    from thalweg.hal.platform import Place


class Communicator(ABC):
    """The ranks that share one model. Every call is collective: all ranks make the same calls in the same order.

    Sums are in float32, in rank order, with one rounding to the type of the result. A row's bits thus depend neither on the
    batch around it nor on the rank that sees it."""

    size: int
    captures: bool = True
    """A recorded or captured step may hold the calls. False: such a step is run as it is written."""
    ordered: bool = True
    """Sums keep the order above. False: a library chooses it, by the size of a message and the machine."""
    regroups: bool = False
    """`regroup` works."""

    @abstractmethod
    def all_reduce(self, x: Array) -> Array:
        """The sum over ranks, same shape. May reuse x's memory: use the result."""

    @abstractmethod
    def all_gather(self, x: Array, dim: int = -1) -> Array:
        """Every rank's x joined along `dim`, in rank order."""

    def part(self, x: Array, dim: int = -1) -> Array:
        """Optional: this rank's equal part along `dim` of an x that every rank holds whole. No exchange. May share x's memory.
        Norms over all heads need it."""
        raise NotImplementedError(f"{type(self).__name__} has no part")

    def reduce_scatter(self, x: Array, dim: int = -1) -> Array:
        """Optional: this rank's part along `dim` of the sum. Sequence parallelism needs it."""
        raise NotImplementedError(f"{type(self).__name__} has no reduce_scatter")

    def all_to_all(self, x: Array, dim: int = 0) -> Array:
        """Optional: part r of x along `dim` goes to rank r. The parts received are joined in rank order. Expert parallelism
        needs it."""
        raise NotImplementedError(f"{type(self).__name__} has no all_to_all")

    def abort(self) -> None:
        """End the calls in flight, and all later ones, with thalweg.errors.PeerError. Any thread may call it."""
        return

    def close(self) -> None:
        """Leave the group. A peer still in a call gets a PeerError that names this rank."""
        return

    def regroup(self, place: Place) -> None:
        """Optional: leave a group that lost a rank, and join a new one of the same ranks. No call may be in flight. Waits for
        the others at the meeting address of `place`. DeviceError names a rank that does not come."""
        raise NotImplementedError(f"{type(self).__name__} has no regroup")

    def part_size(self, shape: tuple[int, ...], dim: int) -> int:
        """Extent of a rank's part along `dim` of this shape. Raises ValueError where the parts are not equal."""
        if shape[dim] % self.size:
            raise ValueError(f"dimension {dim} of {tuple(shape)} has no {self.size} equal parts, one for each rank")
        return shape[dim] // self.size


class Solo(Communicator):
    """One rank: every collective is the identity."""

    size = 1
    regroups = True

    def all_reduce(self, x: Array) -> Array:
        return x

    def regroup(self, place: Place) -> None:
        return

    def all_gather(self, x: Array, dim: int = -1) -> Array:
        return x

    def part(self, x: Array, dim: int = -1) -> Array:
        return x

    def reduce_scatter(self, x: Array, dim: int = -1) -> Array:
        return x

    def all_to_all(self, x: Array, dim: int = 0) -> Array:
        return x


SOLO = Solo()


class StageLinks:
    """The neighbours of this rank in a model with layers divided into stages. What passes between them is exchanged between
    steps, never inside one: each stage records or captures its steps for itself."""

    def __init__(self, index: int = 0, size: int = 1, before: Communicator = SOLO, after: Communicator = SOLO) -> None:
        """index: of this rank's stage, of `size`. before, after: this rank with its neighbour, the earlier stage first."""
        self.index, self.size, self._before, self._after = index, size, before, after

    def receive(self, into: Array) -> None:
        """Overwrite `into` with what the stage before sends, an array of the same shape and type."""
        into.copy_(self._before.all_gather(into.unsqueeze(0), 0)[0])

    def send(self, x: Array) -> None:
        """To the next stage. Returns when that receives it."""
        self._after.all_gather(x.unsqueeze(0), 0)

    @property
    def regroups(self) -> bool:
        """As `Communicator.regroups`."""
        return self._before.regroups and self._after.regroups

    def regroup(self, place: Place) -> None:
        """As `Communicator.regroup`."""
        self._before.regroup(place)
        self._after.regroup(place)

    def abort(self) -> None:
        """As `Communicator.abort`."""
        self._before.abort()
        self._after.abort()

    def close(self) -> None:
        """As `Communicator.close`."""
        self._before.close()
        self._after.close()


@dataclass(frozen=True, slots=True)
class Mesh:
    """The axes along which ranks divide a model, each with its communicator."""

    tensor: Communicator = SOLO
    """Ranks that compute a share of every layer."""
    expert: Communicator = SOLO
    """Ranks that compute different experts, whole: the ranks of `tensor`."""
    stage: StageLinks = field(default_factory=StageLinks)
    """Ranks that compute different layers, in order."""
    data: Communicator = SOLO
    """Ranks that compute different sequences."""

    def sizes(self) -> dict[str, int]:
        """Ranks of each axis, by its name."""
        return {axis.name: getattr(self, axis.name).size for axis in fields(self)}
