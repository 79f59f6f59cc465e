"""A feed-forward part with a learned activation."""

from __future__ import annotations

from dataclasses import dataclass

from thalweg.models.weights import Weights, linear, vector


@dataclass(frozen=True, slots=True, kw_only=True)
class XieluMLP:
    """down(xIELU(up(x))), with two numbers per layer that shape the activation (arXiv 2411.13010)."""

    inner: int
    name: str = "mlp"

    @property
    def width(self) -> int:
        return self.inner

    def weights(self, at: str, hidden: int) -> Weights:
        at = f"{at}{self.name}."
        return {
            "up": linear({f"{at}up_proj": self.inner}, hidden, shard=0),
            "down": linear({f"{at}down_proj": hidden}, self.inner, shard=1),
            "act": {
                key: vector(f"{at}act_fn.alpha_{key}", 1, fill="ones", dtype="float32") for key in ("p", "n")
            },
        }  # fmt: skip
