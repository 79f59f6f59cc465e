"""The indexer of sparse attention: it selects the tokens to read."""

from __future__ import annotations

from dataclasses import dataclass

from thalweg.models.spec.norm import LayerNorm
from thalweg.models.weights import Weights, linear, vector


def growth_weights(name: str, heads: int, shard: int | None) -> Weights:
    """A factor per head, scale * log(position + 1) + bias."""
    return {key: vector(f"{name}.{key}", heads, shard=shard, dtype="float32") for key in ("scale", "bias")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexer:
    """Separate heads, which read the latent of q, and one key per token, from x. Tokens are ranked by the sum over heads of
    relu(q . k), each times a weight computed from x (`ops.index_top`)."""

    heads: int
    dim: int
    """Of a head's q and of a key. The first values turn, as many as attention's."""
    interleaved: bool = False
    last: bool = False
    """The last values turn, not the first."""
    apart: bool = False
    """Its heads read x, after a layer normalisation with biases, not the latent of q."""
    grows: str = ""
    """As `LatentAttention.softmax_scaling`, of its heads."""
    turns: bool = True
    """False: neither q nor keys turn."""
    eps: float = 1e-6
    name: str = "indexer"

    @property
    def norm(self) -> LayerNorm:
        """Of keys, before they turn."""
        return LayerNorm("k_norm", self.dim, self.eps)

    def weights(self, at: str, hidden: int, q_latent: int) -> Weights:
        """Every rank has the whole indexer: each needs its indices."""
        at, more = f"{at}{self.name}.", {}
        if self.apart:
            more["entry"] = LayerNorm("q_input_norm", hidden, self.eps).weights(at)
        if self.grows:
            more["grows"] = growth_weights(f"{at}{self.grows}", self.heads, shard=None)
        return {
            **more,
            "q": linear({f"{at}wq_b": self.heads * self.dim}, hidden if self.apart else q_latent, shard=None),
            "down": linear({f"{at}wk": self.dim, f"{at}weights_proj": self.heads}, hidden, shard=None),
            "norm": self.norm.weights(at),
        }
