"""The perceiver resampler of Idefics 2 (Laurençon et al. 2024, https://arxiv.org/abs/2405.02246)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from thalweg.models.spec.norm import Norm
from thalweg.models.weights import Source, Weight, Weights, linear


@dataclass(frozen=True, slots=True, kw_only=True)
class PerceiverSpec:
    """Learned queries attend to a view's projected vectors and to each other, in several layers."""

    root: str
    queries: int
    """Vectors of a view."""
    inputs: int
    """Size of the encoder's vectors."""
    inner: int
    """Of the feed-forward part that projects them."""
    act: str
    """Of that part."""
    hidden: int
    """Of the language model, and of the queries."""
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    layer_act: str
    eps: float

    def norm(self, name: str) -> Norm:
        return Norm(name, self.hidden, self.eps)

    def weights(self, outputs: int) -> Weights:
        """outputs: size of the language model's vectors, as `hidden`."""
        at = f"{self.root}perceiver_resampler."
        result: dict[str, Any] = {
            "enter": self._mlp(f"{self.root}modality_projection.", self.inputs, self.inner, outputs),
            "query": Weight((Source(f"{at}latents", (self.queries, outputs)),)),
            "layers": {i: self._layer(f"{at}layers.{i}.", outputs) for i in range(self.layers)},
            "leave": self.norm("norm").weights(at),
        }
        return result

    def _layer(self, at: str, n: int) -> Weights:
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return {
            "queries": self.norm("input_latents_norm").weights(at),
            "source": self.norm("input_context_norm").weights(at),
            "q": linear({f"{at}self_attn.q_proj": q}, n, shard=0),
            "kv": linear({f"{at}self_attn.k_proj": kv, f"{at}self_attn.v_proj": kv}, n, shard=0),
            "out": linear({f"{at}self_attn.o_proj": n}, q, shard=0),
            "after": self.norm("post_attention_layernorm").weights(at),
            "mlp": self._mlp(f"{at}mlp.", n, 4 * n, n),
        }

    @staticmethod
    def _mlp(at: str, inputs: int, inner: int, outputs: int) -> Weights:
        return {
            "up": linear({f"{at}gate_proj": inner, f"{at}up_proj": inner}, inputs, shard=0),
            "down": linear({f"{at}down_proj": outputs}, inner, shard=0),
        }
