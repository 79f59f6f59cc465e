"""A projector of MiniCPM-V: as many vectors of each view, whatever its size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from thalweg.models.spec.norm import LayerNorm
from thalweg.models.weights import Source, Weight, Weights, linear, vector


@dataclass(frozen=True, slots=True, kw_only=True)
class ResamplerSpec:
    """Learned queries attend to the vectors of a view, whose keys have sines of their row and column added."""

    root: str
    queries: int
    """Vectors of a view."""
    inputs: int
    hidden: int
    """Of the language model, and of keys and values."""
    heads: int
    eps: float = 1e-6

    def norm(self, name: str) -> LayerNorm:
        return LayerNorm(name, self.hidden, self.eps)

    def weights(self, outputs: int) -> Weights:
        """outputs: size of the language model's vectors, as `hidden`."""
        at, n = self.root, outputs
        result: dict[str, Any] = {
            "query": Weight((Source(f"{at}query", (self.queries, n)),)),
            "qkv": Weight((Source(f"{at}attn.in_proj_weight", (3 * n, n)),)), "shift": vector(f"{at}attn.in_proj_bias", 3 * n),
            "attended": linear({f"{at}attn.out_proj": n}, n, shard=0, bias=True),
            "out": Weight((Source(f"{at}proj", (n, n)),)),
            **{key: self.norm(f"ln_{key}").weights(at) for key in ("q", "kv", "post")},
        }  # fmt: skip
        return result | ({} if self.inputs == n else {"enter": linear({f"{at}kv_proj": n}, self.inputs, shard=0)})
