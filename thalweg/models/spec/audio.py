"""Audio encoders: log-mel spectra in, a vector for each placeholder of the prompt out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from thalweg.models.spec.vision import ProjectorLayer, ProjectorSpec, plain
from thalweg.models.weights import Source, Weight, Weights, linear, vector

if TYPE_CHECKING:
    from thalweg.models.spec.model import Layer

TAPS = 3
"""Kernel size of a convolution, along each of its axes."""


@dataclass(frozen=True, slots=True)
class Conv:
    """A convolution over time, or over time and frequency."""

    name: str
    inputs: int
    outputs: int
    stride: int
    flat: bool = False
    """Over both. Then frequencies are no channels."""

    def weights(self, at: str) -> dict[str, Weight]:
        taps = (TAPS, TAPS) if self.flat else (TAPS,)
        return {
            "weight": Weight((Source(f"{at}{self.name}.weight", (self.outputs, self.inputs, *taps)),)),
            "bias": vector(f"{at}{self.name}.bias", self.outputs),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioSpec:
    """Convolutions over chunks of a spectrum, positions, layers with attention across chunks, a projector."""

    bins: int
    """Of the spectrum."""
    hidden: int
    layers: tuple[Layer, ...]
    convs: tuple[Conv, ...]
    projector: ProjectorSpec
    act: str = "gelu"
    """After each convolution."""
    masked: bool = False
    """A chunk's padding is set to zero again after the first convolution."""
    out: ProjectorLayer | None = None
    """From channels and frequencies to `hidden`."""
    places: str = ""
    """The learned table of positions; "" = the step has them, to be added or as rotary angles."""
    rows: int = 0
    """Of it."""
    root: str = "model.audio_tower."
    layer: str = "layers.{}."

    def weights(self, hidden: int) -> Weights:
        """hidden: the language model's. Every parameter is whole on each rank, and held in the model's dtype."""
        result: dict[str, Any] = {
            "convs": {i: each.weights(self.root) for i, each in enumerate(self.convs)},
            "layers": {i: each.weights(self.root + self.layer.format(i), self.hidden) for i, each in enumerate(self.layers)},
            "projector": self.projector.weights(),
        }
        if self.out is not None:
            name = f"{self.root}{self.out.name}"
            result["out"] = linear({name: self.out.outputs}, self.out.inputs, shard=0, bias=self.out.bias)
        if self.places:
            result["places"] = Weight((Source(f"{self.root}{self.places}.weight", (self.rows, self.hidden)),))
        return plain(result)
