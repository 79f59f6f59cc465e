"""A speech encoder whose convolutions have gates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from thalweg.models.spec.speech import STRIDE, SpeechEncoder
from thalweg.models.weights import Source, Weight, Weights, vector


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedSource(SpeechEncoder):
    """Strided convolutions with gated linear units over a spectrum, positions of sines, and layers (Wang et al. 2020,
    https://arxiv.org/abs/2010.05171). Clips have different lengths: a row of features is f32[bins, 1 + frames], with the number
    of frames in front of the spectrum."""

    form: str = "speech2text"
    starts: bool = True
    longest: int
    """Hundredths of a second of the longest clip."""
    taps: tuple[int, ...]
    """Of each convolution."""
    channels: int
    """Outputs of each convolution but the last, with those of the gate."""
    scale: float
    """Of the convolutions' output."""
    first: int
    """The row of sines of the first position."""

    @property
    def frames(self) -> int:
        return self.longest

    def count_sources(self, frames: int) -> int:
        """Vectors of a clip with so many frames."""
        for _ in self.taps:
            frames = (frames - 1) // STRIDE + 1
        return frames

    def weights(self, at: str) -> Weights:
        at, n = f"{at}{self.name}", self.hidden
        result: dict[str, Any] = {"convs": {}}
        inputs = self.bins
        for i, taps in enumerate(self.taps):
            outputs, name = 2 * n if i + 1 == len(self.taps) else self.channels, f"{at}conv.conv_layers.{i}"
            result["convs"][i] = {
                "weight": Weight((Source(f"{name}.weight", (outputs, inputs, taps)),)),
                "bias": vector(f"{name}.bias", outputs),
            }
            inputs = outputs // 2
        result["layers"] = {i: each.weights(at + self.layer.format(i), n) for i, each in enumerate(self.layers)}
        result["norm"] = self.norm.weights(at)
        return result
