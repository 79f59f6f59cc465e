"""An encoder of conformer layers whose result is a transcript, behind any entrance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from thalweg.models.spec.conformer_layer import ConformerLayer
from thalweg.models.spec.entrances import Entrance, scale_shift
from thalweg.models.spec.pooling_adapter import PoolingAdapter
from thalweg.models.spec.transcript import TranscriptHead
from thalweg.models.spec.vision import plain
from thalweg.models.weights import Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class ConformerTranscriberSpec:
    entrance: Entrance
    layer: ConformerLayer
    layers: int
    last: str = ""
    """The norm of the last layer's output. "": none."""
    last_eps: float = 1e-5
    adapter: PoolingAdapter | None = None
    """Of the last layer's output."""
    frames: int
    """States of the longest clip."""
    head: TranscriptHead
    root: str
    layer_root: str

    @property
    def width(self) -> int:
        """As of `VisionSpec`."""
        return 1

    def weights(self, hidden: int) -> Weights:
        """hidden: unused, as the result is a transcript. Parameters are whole on each rank, in the model's dtype."""
        result: dict[str, Any] = {
            **self.entrance.weights(self.root),
            "layers": {i: self.layer.weights(f"{self.layer_root}{i}.") for i in range(self.layers)},
            "head": self.head.weights(self.layer.hidden),
        }
        if self.adapter is not None:
            result["adapter"] = self.adapter.weights()
        if self.last:
            result["last"] = scale_shift(self.last, self.layer.hidden, self.layer.norm_bias)
        return plain(result)
