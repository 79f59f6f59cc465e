"""The projector of Kosmos-2 (Peng et al. 2023, https://arxiv.org/abs/2306.14824)."""

from __future__ import annotations

from dataclasses import dataclass

from thalweg.models.weights import Source, Weight, Weights, linear


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentReaderSpec:
    """Learned queries attend once to a view's vectors, scaled to length 1 and projected, and to each other."""

    root: str
    queries: int
    """Vectors of a view."""
    inputs: int
    """Size of the encoder's vectors."""
    heads: int

    def weights(self, outputs: int) -> Weights:
        """outputs: size of the language model's vectors."""
        at, n = f"{self.root}x_attn.", outputs
        return {
            "enter": linear({f"{self.root}dense": n}, self.inputs, shard=0, bias=True),
            "query": Weight((Source(f"{self.root}latent_query", (self.queries, n)),)),
            "q": linear({f"{at}q_proj": n}, n, shard=0, bias=True),
            "kv": linear({f"{at}k_proj": n, f"{at}v_proj": n}, n, shard=0, bias=True),
            "out": linear({f"{at}out_proj": n}, n, shard=0, bias=True),
        }
