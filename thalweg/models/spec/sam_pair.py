"""SAM and SigLIP over the same image at two sizes (DeepSeek-VL, https://arxiv.org/abs/2403.05525)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from thalweg.models.spec.sam import SamSpec
from thalweg.models.spec.vision import VisionSpec, plain
from thalweg.models.weights import Weights, linear, vector


@dataclass(frozen=True, slots=True, kw_only=True)
class SamPairSpec(SamSpec):
    """SAM's grid, and that of an earlier layer with a learned weight, are stretched before the convolutions. Their vectors and
    those of the smaller image become halves, which are joined before an activation and the projector."""

    low: VisionSpec
    """The encoder of the smaller image. Its projector is not used."""
    tap: int
    """The earlier layer."""
    second: str
    """Names of the convolutions over its output begin with it."""
    weigh: str
    """The tensor [1] of its weight."""
    stretched: int
    """Vectors along an edge before `convs`."""
    halves: tuple[str, str]
    """Linear layers of SAM's vectors, and of the others."""
    joined: int
    """Size of both halves together."""

    def weights(self, hidden: int) -> Weights:
        result: dict[str, Any] = dict(SamSpec.weights(self, hidden))
        result["second"] = self.neck_weights(self.second)
        result["weigh"] = vector(self.weigh, 1)
        low = self.low.weights(hidden)
        result["low"] = {key: low[key] for key in ("patch", "places", "layers", "leave")}
        inputs = (self.convs[-1][1], self.low.hidden)
        result["halves"] = {
            i: linear({name: self.joined // 2}, size, shard=0, bias=True)
            for i, (name, size) in enumerate(zip(self.halves, inputs, strict=True))
        }
        return plain(result)
