"""A router with layers of its tokens' projections, which carries them from one layer of the model to the next (Zaya)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from thalweg.models.spec.norm import Norm
from thalweg.models.weights import Weights, linear, vector


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepRouter:
    """r = down(x) + s * the last layer's r. Scores are softmax(out(gelu(second(gelu(first(norm(r))))))), of the experts and of
    no expert, which comes last. The best one with a bias is selected, and its score is its weight."""

    size: int
    """Of r."""
    eps: float
    carries: bool
    """False: of the first layer, which has no other's r."""
    name: str = "gate"

    def weights(self, at: str, hidden: int, experts: int) -> Weights:
        at, n = f"{at}{self.name}.", self.size
        result: dict[str, Any] = {
            "down": linear({f"{at}down_proj": n}, hidden, shard=None, bias=True),
            "norm": Norm("norm", n, self.eps).weights(f"{at}router_mlp."),
            "first": linear({f"{at}router_mlp.fc1": n}, n, shard=None, bias=True),
            "second": linear({f"{at}router_mlp.fc2": n}, n, shard=None, bias=True),
            "out": linear({f"{at}router_mlp.out_proj": experts + 1}, n, shard=None),
            "biases": {"weight": vector(f"{at}balancing_biases", experts + 1, fill="zeros", dtype="float32")},
        }
        if self.carries:
            result["carry"] = {"weight": vector(f"{at}router_states_scale", n, fill="ones")}
        return result
