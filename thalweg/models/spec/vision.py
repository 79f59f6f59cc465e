"""Encoders of images: patches in, a vector for each placeholder of the prompt out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any, Literal

from thalweg.models.spec.norm import AnyNorm
from thalweg.models.weights import Source, View, Weight, Weights, linear, vector

if TYPE_CHECKING:
    from thalweg.models.spec.model import Layer


@dataclass(frozen=True, slots=True)
class Step:
    """One linear layer of a projector."""

    name: str
    inputs: int
    outputs: int
    bias: bool = False
    act: str = ""
    """After it, as `ops.activation` names it; "" = none."""
    turned: bool = False
    """Stored [inputs, outputs]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Projector:
    """From the encoder's vectors to the language model's: `group` neighbours joined, then linear layers."""

    root: str
    steps: tuple[Step, ...]
    group: int = 1
    join: Literal["rows", "channels", "mean"] = "rows"
    """rows: one vector after the other. channels: each channel of all of them, then the next. mean: their mean."""
    before: AnyNorm | None = None
    """Of each vector."""
    after: AnyNorm | None = None
    """Of what is joined."""

    def weights(self) -> Weights:
        made: dict[str, Any] = {
            "steps": {
                i: linear({f"{self.root}{s.name}": s.outputs}, s.inputs, shard=0, bias=s.bias, turned=s.turned)
                for i, s in enumerate(self.steps)
            }
        }
        for key, norm in (("before", self.before), ("after", self.after)):
            if norm is not None:
                made[key] = norm.weights(self.root)
        return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Vision:
    """Layers over the patches of an image, all of which see each other, or those of their window."""

    hidden: int
    layers: tuple[Layer, ...]
    projector: Projector
    patch: str
    """The convolution that embeds patches. It is a product, because no two patches overlap."""
    kernel: tuple[int, ...]
    """Channels, (pictures,) rows and columns of a patch."""
    patch_bias: bool = False
    root: str = "model.vision_tower."
    layer: str = "layers.{}."
    whole: str = ""
    """A learned vector in place of the first patch, which then stands for the image; "" = none."""
    places: str = ""
    """The learned table of places; "" = none."""
    rows: int = 0
    """Of it."""
    enter: AnyNorm | None = None
    """Of embedded patches."""
    leave: AnyNorm | None = None
    """Of what the last layer gives."""
    windowed: frozenset[int] = frozenset()
    """Layers that see windows."""
    taps: tuple[tuple[int, Projector], ...] = ()
    """Layers of which vectors are made, too: the language model adds those to what its first layers give."""

    @property
    def width(self) -> int:
        """Values of what a placeholder gets, in hidden sizes of the language model."""
        return 1 + len(self.taps)

    def weights(self, hidden: int) -> Weights:
        """hidden: the language model's. Every parameter is whole on each rank, and held in the model's dtype."""
        name, values = f"{self.root}{self.patch}", prod(self.kernel)
        view = View(f"{name}.weight", (self.hidden, *self.kernel), flat=True)
        made: dict[str, Any] = {
            "patch": {"weight": Weight((Source(f"{name}.flat", (self.hidden, values), within=view),))},
            "layers": {i: each.weights(self.root + self.layer.format(i), self.hidden) for i, each in enumerate(self.layers)},
            "projector": self.projector.weights(),
            "taps": {i: each.weights() for i, (_, each) in enumerate(self.taps)},
        }
        if self.patch_bias:
            made["patch"]["bias"] = vector(f"{name}.bias", self.hidden)
        if self.whole:
            made["whole"] = vector(f"{self.root}{self.whole}", self.hidden)
        if self.places:
            made["places"] = {"weight": Weight((Source(f"{self.root}{self.places}.weight", (self.rows, self.hidden)),))}
        for key, norm in (("enter", self.enter), ("leave", self.leave)):
            if norm is not None:
                made[key] = norm.weights(self.root)
        return plain(made)


def plain(tree: Mapping[Any, Any]) -> dict[Any, Any]:
    """The same, with roles and shards that say: leave it as it is."""
    return {
        key: plain(value) if isinstance(value, Mapping) else replace(value, role="plain", shard=None)
        for key, value in tree.items()
    }
