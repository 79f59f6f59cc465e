"""The Q-Former (Li et al. 2023, https://arxiv.org/abs/2301.12597): learned queries read an encoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from thalweg.models.spec.norm import LayerNorm
from thalweg.models.weights import Source, Weight, Weights, linear


@dataclass(frozen=True, slots=True, kw_only=True)
class QFormerSpec:
    """Learned queries attend to each other and to the states of a window. Norms follow additions."""

    queries: int
    """Vectors of a window."""
    window: int
    """States of the encoder projected together."""
    source: int
    """Size of such a state."""
    hidden: int
    heads: int
    inner: int
    layers: int
    every: int
    """Layers whose numbers are multiples of it attend to the window, too."""
    act: str
    eps: float
    root: str = "model.projector."

    def attends(self, layer: int) -> bool:
        """Does this layer attend to the window?"""
        return layer % self.every == 0

    def norm(self, name: str) -> LayerNorm:
        return LayerNorm(name, self.hidden, self.eps)

    def weights(self, outputs: int) -> Weights:
        """outputs: size of the language model's vectors."""
        at, n = f"{self.root}qformer.", self.hidden
        return {
            "query": Weight((Source(f"{self.root}query", (1, self.queries, n)),)),
            "enter": self.norm("layernorm").weights(at),
            "layers": {i: self._layer(f"{at}encoder.layer.{i}.", i) for i in range(self.layers)},
            "out": linear({f"{self.root}linear": outputs}, n, shard=0, bias=True),
        }

    def _layer(self, at: str, i: int) -> Weights:
        result: dict[str, Any] = {
            "own": self._attention(f"{at}attention.", self.hidden),
            "up": linear({f"{at}intermediate_query.dense": self.inner}, self.hidden, shard=0, bias=True),
            "down": linear({f"{at}output_query.dense": self.hidden}, self.inner, shard=0, bias=True),
            "norm": self.norm("output_query.LayerNorm").weights(at),
        }
        return result | ({"window": self._attention(f"{at}crossattention.", self.source)} if self.attends(i) else {})

    def _attention(self, at: str, inputs: int) -> Weights:
        n = self.hidden
        return {
            "q": linear({f"{at}attention.query": n}, n, shard=0, bias=True),
            "kv": linear({f"{at}attention.key": n, f"{at}attention.value": n}, inputs, shard=0, bias=True),
            "out": linear({f"{at}output.dense": n}, n, shard=0, bias=True),
            "norm": self.norm("output.LayerNorm").weights(at),
        }
