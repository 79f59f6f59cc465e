"""A speech encoder that reads samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from thalweg.models.spec.rope import Rope
from thalweg.models.spec.speech import SpeechEncoder
from thalweg.models.weights import Source, Weight, Weights, vector

CONVOLUTIONS = ((127, 64), (7, 3), (3, 2))
"""Taps and stride of each."""


def count_sources(samples: int) -> int:
    """Vectors for a clip."""
    for taps, stride in CONVOLUTIONS:
        samples = (samples - taps) // stride + 1
    return samples


@dataclass(frozen=True, slots=True, kw_only=True)
class WaveformEncoder(SpeechEncoder):
    """Three convolutions over samples, and layers with rotary positions (Jeffries et al. 2024, https://arxiv.org/abs/2410.15608).
    Clips have different lengths: a row of features is the number of samples, and the samples."""

    form: str = "start"
    starts: bool = True
    bins: int = 0
    """Of a spectrum: it reads none."""
    longest: int
    """Hundredths of a second of the longest clip."""
    rope: Rope
    group_norm: str = "groupnorm"
    """Of the first convolution, over all its outputs."""

    @property
    def frames(self) -> int:
        return self.longest

    def weights(self, at: str) -> Weights:
        at, n = f"{at}{self.name}", self.hidden
        result: dict[str, Any] = {}
        for i, (inputs, outputs) in enumerate(((1, n), (n, 2 * n), (2 * n, n))):
            name, taps = f"{at}conv{i + 1}", CONVOLUTIONS[i][0]
            result[f"conv{i + 1}"] = {"weight": Weight((Source(f"{name}.weight", (outputs, inputs, taps)),))}
            if i:
                result[f"conv{i + 1}"]["bias"] = vector(f"{name}.bias", outputs)
        result["group_norm"] = {key: vector(f"{at}{self.group_norm}.{key}", n) for key in ("weight", "bias")}
        result["layers"] = {i: each.weights(at + self.layer.format(i), n) for i, each in enumerate(self.layers)}
        result["norm"] = self.norm.weights(at)
        return result
