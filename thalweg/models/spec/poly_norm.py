"""A gated feed-forward part with PolyNorm as activation (https://arxiv.org/abs/2411.03884)."""

from __future__ import annotations

from dataclasses import dataclass

from thalweg.models.weights import Weights, linear, vector


@dataclass(frozen=True, slots=True, kw_only=True)
class PolyNormMLP:
    """down(act(gate(x)) * up(x)), where act is a sum of norms of the third, second and first power, with learned factors."""

    inner: int
    bias: bool = False
    name: str = "mlp"

    @property
    def width(self) -> int:
        return self.inner

    def weights(self, at: str, hidden: int) -> Weights:
        at = f"{at}{self.name}."
        parts = {f"{at}gate_proj": self.inner, f"{at}up_proj": self.inner}
        return {
            "gate_up": linear(parts, hidden, shard=None, bias=self.bias),
            "down": linear({f"{at}down_proj": hidden}, self.inner, shard=None, bias=self.bias),
            "act": {
                "weight": vector(f"{at}act_fn.weight", 3, dtype="float32"),
                "bias": vector(f"{at}act_fn.bias", 1, dtype="float32"),
            },
        }
