"""Hyper-connections: several residual streams, which each part of a layer reads as one (`ops.hyper_weights`)."""

from __future__ import annotations

from dataclasses import dataclass

from thalweg.models.spec.engram import EngramInput
from thalweg.models.weights import Source, Weight, Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class HyperStreams:
    """The streams of a model: all begin as the embedding, and their weighted sum, or their mean, is the result."""

    count: int
    eps: float
    """Of the norm of all streams together, and `hyper_eps` of weights."""
    hyper_eps: float
    head: str = "hc_head_"
    """Prefix of the tensors that weigh the streams at the end. "": the result is their mean."""
    carried: bool = False
    """The last part of the last layer has computed their weights. Requires an empty `head`."""

    def weights(self, at: str, hidden: int) -> Weights:
        if not self.head:
            return {}
        n, at = self.count, f"{at}{self.head}"
        return {"fn": _whole(f"{at}fn", n, n * hidden), "base": _whole(f"{at}base", n), "scale": _whole(f"{at}scale", 1)}


@dataclass(frozen=True, slots=True, kw_only=True)
class HyperConnection:
    """The operations around one part of a layer, its mixer or its feed-forward part. The streams' weighted sum enters the part.
    Each stream becomes a weighted sum of all, plus its share of the part's output."""

    streams: int
    iters: int
    """Rounds of normalisation of the mixing matrix. 0: there is none, and each stream stays as it is."""
    magnitude: float = 2.0
    """Where there is no such matrix: the factor of the output's weights."""
    eps: float
    hyper_eps: float
    name: str
    """Prefix of its tensors."""
    carried: bool = False
    """The input's weights are those that the part before has computed, and its own are the next part's. Requires `iters`."""
    inputs: EngramInput | None = None
    """Added to the streams first. The layer's first mixer is then its `cache`."""

    @property
    def table_bytes(self) -> int:
        """Of computed tables."""
        return self.inputs.table_bytes if self.inputs is not None else 0

    def weights(self, at: str, hidden: int) -> Weights:
        prefix, n, at = at, self.streams, f"{at}{self.name}"
        outputs = (2 + n) * n if self.iters else 2 * n
        more = {} if self.inputs is None else {"inputs": self.inputs.weights(prefix, hidden)}
        return {
            **more,
            "fn": _whole(f"{at}fn", outputs, n * hidden),
            "base": _whole(f"{at}base", outputs),
            "scale": _whole(f"{at}scale", 3 if self.iters else 2),
        }


def _whole(name: str, *shape: int) -> dict[str, Weight]:
    return {"weight": Weight((Source(name, shape),), dtype="float32")}
