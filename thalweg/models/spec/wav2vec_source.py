"""wav2vec 2.0 as the source of cross-attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from thalweg.models.spec.entrances import convolution
from thalweg.models.spec.speech import SpeechEncoder
from thalweg.models.spec.vision import plain
from thalweg.models.spec.wav2vec import Wav2VecSpec
from thalweg.models.weights import Weights, linear


@dataclass(frozen=True, slots=True, kw_only=True)
class Wav2VecSource(SpeechEncoder):
    """An encoder of samples, strided convolutions with gates, and a matrix to the decoder's size. A row of features is the
    number of samples, and the samples."""

    form: str = "wav2vec"
    starts: bool = True
    bins: int = 0
    longest: int
    """Hundredths of a second of the longest clip."""
    encoder: Wav2VecSpec
    convs: int = 0
    """Convolutions behind the encoder."""
    taps: int = 3
    stride: int = 2
    projection: str = ""
    """The matrix. "": there is none."""

    @property
    def frames(self) -> int:
        return self.longest

    def count_sources(self, states: int) -> int:
        """Vectors of so many states of the encoder."""
        for _ in range(self.convs):
            states = (states + 2 - self.taps) // self.stride + 1
        return states

    def weights(self, at: str) -> Weights:
        n = self.encoder.hidden
        result: dict[str, Any] = {
            "encoder": self.encoder.weights(self.hidden),
            "convs": {
                i: convolution(f"{self.encoder.root}adapter.layers.{i}.conv", (2 * n, n, self.taps)) for i in range(self.convs)
            },
        }
        if self.projection:
            result["out"] = linear({self.projection: self.hidden}, n, shard=0, bias=True)
        return plain(result)
