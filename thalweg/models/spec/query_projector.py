"""The projector of Aria: as many vectors of each view, whatever its size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from thalweg.models.spec.norm import LayerNorm
from thalweg.models.weights import Source, Weight, Weights, linear, vector


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryProjectorSpec:
    """Learned queries attend to the vectors of a view, and two linear layers follow. Queries, keys and values pass through two
    matrices each."""

    root: str
    queries: int
    """Vectors of a view."""
    hidden: int
    """Of the encoder."""
    inner: int
    """Of the linear layers."""
    heads: int
    eps: float = 1e-5

    def norm(self, name: str) -> LayerNorm:
        return LayerNorm(name, self.hidden, self.eps)

    def weights(self, outputs: int) -> Weights:
        """outputs: size of the language model's vectors."""
        at, n = self.root, self.hidden
        cross = f"{at}cross_attn."
        result: dict[str, Any] = {
            "query": Weight((Source(f"{at}query", (self.queries, n)),)),
            **{part: linear({f"{cross}{part}_proj": n}, n, shard=0) for part in "qkv"},
            "qkv": Weight((Source(f"{cross}multihead_attn.in_proj_weight", (3 * n, n)),)),
            "shift": vector(f"{cross}multihead_attn.in_proj_bias", 3 * n),
            "attended": linear({f"{cross}multihead_attn.out_proj": n}, n, shard=0, bias=True),
            "out": linear({f"{cross}linear": n}, n, shard=0, bias=True),
            "entry": self.norm("layer_norm").weights(cross), "source": self.norm("layer_norm_kv").weights(cross),
            "exit": self.norm("layer_norm").weights(at),
            "up": linear({f"{at}feed_forward.linear_in": self.inner}, n, shard=0),
            "down": linear({f"{at}feed_forward.linear_out": outputs}, self.inner, shard=0),
        }  # fmt: skip
        return result
