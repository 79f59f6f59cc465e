"""The contract between what checkpoints keep and what layers hold.

A `Scheme` says in which `WeightFormat` each parameter is held. A `Format` is a scheme that comes with a checkpoint, and the
reader of its tensors: one file each in `formats/`, or an installed package. It knows no model, no device and no file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from thalweg.hal.weights import DENSE, QTensor, WeightFormat

if TYPE_CHECKING:
    from torch import Tensor

QUANTISED = ("linear", "experts", "head")
"""Roles of parameters that a format may hold quantised; of others (embeddings, tied or not, norms, routers) it is not asked."""


class Scheme(Protocol):
    def of(self, role: str, name: str) -> WeightFormat:
        """What a parameter is held in. role: what it is for ("linear", "experts", "head", "tied", "embedding", "plain").
        name: of the tensor that is, or would be, its weight: "model.layers.0.mlp.down_proj.weight"."""


@dataclass(frozen=True, slots=True)
class Part:
    """One of the tensors in which a checkpoint keeps a quantised weight."""

    shapes: tuple[tuple[int, ...], ...]
    """Those that it may have."""
    optional: bool = False


Get = Callable[[str], "Tensor"]
"""The tensor of this suffix ("weight_scale"), whole. KeyError if there is none."""


class Format(ABC):
    """How one kind of quantised checkpoint keeps its weights. Made from the description that comes with it; the constructor
    raises UnsupportedModelError, naming the key, for what it does not read."""

    name: str

    def __init__(self, description: Mapping[str, Any]) -> None:
        self.description = description

    @abstractmethod
    def scheme(self, layer: str) -> WeightFormat | None:
        """What the weight of this layer ("model.layers.0.mlp.down_proj") is held in; None: it is dense in the files."""

    @abstractmethod
    def parts(self, layer: str, shape: tuple[int, int]) -> Mapping[str, Part]:
        """The tensors that hold a quantised weight [outputs, inputs], by what follows the layer's name and a dot."""

    @abstractmethod
    def read(self, layer: str, shape: tuple[int, int], get: Get) -> QTensor:
        """The weight in canonical form, of the format that `scheme` says. Scales have a row for every output, so that
        weights may be joined and divided among ranks."""

    def ignores(self, name: str) -> bool:
        """May a tensor that is no part of any weight be left unread? Default: none may."""
        return False

    def multiplied(self, method: str) -> Format | None:
        """The same weights, whose products take their inputs as an online method of this name does. None: not with this format.
        Default: never."""
        return None

    def of(self, role: str, name: str) -> WeightFormat:
        found = self.scheme(name.removesuffix(".weight")) if role in QUANTISED else None
        return found or DENSE
