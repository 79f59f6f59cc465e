"""A speech encoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from thalweg.models.spec.norm import AnyNorm
from thalweg.models.weights import Source, Weight, Weights, vector

if TYPE_CHECKING:
    from thalweg.models.spec.model import Layer

TAPS = 3
"""Frames that a convolution sees."""
STRIDE = 2
"""Frames for each vector of the source: that of the second convolution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechEncoder:
    """Two convolutions over time, learned positions, layers in which everything sees everything, a norm. Its input is a log-mel
    spectrum of a fixed length."""

    bins: int
    """Of the spectrum."""
    sources: int
    """Vectors that it gives."""
    hidden: int
    layers: tuple[Layer, ...]
    norm: AnyNorm
    act: str = "gelu"
    """After each convolution."""
    multilingual: bool = True
    """The language of the audio is a token of the prompt. False: the model knows only English."""
    form: str = "whisper"
    """As `SpeechConfig` has it."""
    starts: bool = False
    """A transcript's prompt is the start token of generation_config.json, and those that it forces."""
    name: str = "encoder."
    layer: str = "layers.{}."

    @property
    def frames(self) -> int:
        """Of the spectrum."""
        return STRIDE * self.sources

    def weights(self, at: str) -> Weights:
        at, n = f"{at}{self.name}", self.hidden
        result: dict[str, Any] = {
            f"conv{i}": {
                "weight": Weight((Source(f"{at}conv{i}.weight", (n, inputs, TAPS)),)),
                "bias": vector(f"{at}conv{i}.bias", n),
            }
            for i, inputs in ((1, self.bins), (2, n))
        }
        result["positions"] = {"weight": Weight((Source(f"{at}embed_positions.weight", (self.sources, n)),))}
        result["layers"] = {i: each.weights(at + self.layer.format(i), n) for i, each in enumerate(self.layers)}
        result["norm"] = self.norm.weights(at)
        return result
