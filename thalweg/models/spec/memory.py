"""Layers around transformer blocks that several of them share, which also read the embedding (Zamba 2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from thalweg.models.spec.low_rank import LowRankProduct
from thalweg.models.spec.mlp import MLP
from thalweg.models.weights import Weights, linear


@dataclass(frozen=True, slots=True)
class MemoryStreams:
    """The residual stream, and next to it the embedding, and the output of a shared block. The stream is the result."""

    count: ClassVar[int] = 3

    def weights(self, at: str, hidden: int) -> Weights:
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPart:
    """The operations around one part of a layer, by its role: "attend" reads the stream and the embedding, side by side. "feed"
    reads the output of that part. "scan" reads the stream, plus the projected output of "feed" if there is one, and is added to
    the stream."""

    role: Literal["attend", "feed", "scan"]
    linear: str = ""
    """Of "scan": the matrix that projects the output of "feed"; "" = none, there is no such output."""

    def weights(self, at: str, hidden: int) -> Weights:
        return {"linear": linear({f"{at}{self.linear}": hidden}, hidden, shard=None)} if self.linear else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class LowRankMLP:
    """down(act(gate) * up), where gate and up have an addition of low rank."""

    inner: MLP
    low: LowRankProduct

    @property
    def width(self) -> int:
        return self.inner.width

    def weights(self, at: str, hidden: int) -> Weights:
        own, parts = f"{at}{self.inner.name}.", {"gate": self.inner.inner, "up": self.inner.inner}
        return {**self.inner.weights(at, hidden), "low": self.low.weights(own, parts, hidden)}
