"""Gated residual streams (Qwen 4): several streams, which each part of a layer reads as one through low-rank gates."""

from __future__ import annotations

from dataclasses import dataclass

from thalweg.models.spec.ngram import NGramInput
from thalweg.models.weights import Weights, linear, vector


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedStreams:
    """The streams of a model: all begin as the embedding, and their gated mean is the result, which no norm follows."""

    count: int
    rank: int
    eps: float
    name: str = "hyper_connection_mixer"

    def weights(self, at: str, hidden: int) -> Weights:
        return gates(f"{at}{self.name}.", self.count, self.rank, hidden)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedResidual:
    """The operations around one part of a layer, its mixer or its feed-forward part. The mean of the normed streams, each value
    times a gate, enters the part. Its output is added to each stream with a weight."""

    streams: int
    rank: int
    """Of the gates' matrices."""
    eps: float
    name: str
    inputs: NGramInput | None = None
    """Added to the streams first. The layer's first two mixers are then its `caches`."""

    @property
    def table_bytes(self) -> int:
        """Of computed tables."""
        return self.inputs.table_bytes if self.inputs is not None else 0

    def weights(self, at: str, hidden: int) -> Weights:
        own, n = f"{at}{self.name}.", self.streams
        result = dict(gates(own, n, self.rank, hidden))
        result["inject"] = linear({f"{own}block_inject_weight": n}, n * hidden, shard=None)
        if self.inputs is not None:
            result["inputs"] = self.inputs.weights(at, hidden)
        return result


def gates(at: str, streams: int, rank: int, hidden: int) -> Weights:
    wide = streams * hidden
    return {
        "norm": {"weight": vector(f"{at}hc_norm.weight", wide)},
        "down": linear({f"{at}input_mix_weight_down": rank}, wide, shard=None),
        "up": linear({f"{at}input_mix_weight_up": wide}, rank, shard=None),
    }
