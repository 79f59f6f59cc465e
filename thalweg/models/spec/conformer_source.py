"""FastConformer as the source of cross-attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from thalweg.models.spec.fastconformer import FastConformerSpec
from thalweg.models.spec.speech import SpeechEncoder
from thalweg.models.weights import Weights, linear


@dataclass(frozen=True, slots=True, kw_only=True)
class ConformerSource(SpeechEncoder):
    """Clips have different lengths: a row of features is f32[bins, 1 + frames], with the number of frames in front of the
    spectrum."""

    longest: int
    """Hundredths of a second of the longest clip."""
    encoder: FastConformerSpec
    projection: str
    """The matrix to the decoder's size. "": none, the sizes are equal."""

    @property
    def frames(self) -> int:
        return self.longest

    def weights(self, at: str) -> Weights:
        result: dict[str, Any] = {"encoder": self.encoder.weights(self.hidden)}
        if self.projection:
            name = f"{at}{self.projection}"
            result["out"] = linear({name: self.hidden}, self.encoder.hidden, shard=None, bias=True)
        return result
