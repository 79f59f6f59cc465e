"""The Q-Formers of Granite 4 Vision, which read windows of several layers of a vision encoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from thalweg.models.spec.qformer import QFormerSpec
from thalweg.models.weights import Source, Weight, Weights, linear, vector


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowQFormerSpec(QFormerSpec):
    """Windows of a square are read by learned queries, to which a smaller grid of the same vectors is added."""

    side: int
    """Vectors along an edge of the square."""
    window_side: int
    query_side: int
    """The same of a window, and of its queries."""
    offset: int = -1
    """The smaller grid: of each four neighbours the one of this number. -1: means of neighbours."""

    def weights(self, outputs: int) -> Weights:
        result, n = dict(QFormerSpec.weights(self, outputs)), self.hidden
        result["places"] = Weight((Source(f"{self.root}image_positions", (1, self.window, n)),))
        result["begin"] = {"scale": vector(f"{self.root}norm.weight", n), "shift": vector(f"{self.root}norm.bias", n)}
        result["out"] = linear({f"{self.root}out_linear": outputs}, n, shard=0, bias=True)
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowQFormersSpec:
    """Their vectors are concatenated, for as many layers of the language model."""

    readers: tuple[WindowQFormerSpec, ...]
    sources: tuple[int, ...]
    """Of each reader: the index in `VisionSpec.reads` of the layer that it reads."""
    blank: bool
    """Zeros stand before them: the embedding of a placeholder."""

    @property
    def width(self) -> int:
        """As of `VisionSpec`."""
        return len(self.readers) + self.blank

    def weights(self, outputs: int) -> Weights:
        result: dict[Any, Any] = {i: each.weights(outputs) for i, each in enumerate(self.readers)}
        return result
