"""Sums of the residual stream and a part's output, both with learned affine maps per channel (Zaya)."""

from __future__ import annotations

from dataclasses import dataclass

from thalweg.models.weights import Fill, Weights, vector


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidualScaling:
    """The operation after one part of a layer: (output + b) * w + (stream + c) * v."""

    size: int
    name: str

    def weights(self, at: str, hidden: int) -> Weights:
        at, parts = f"{at}{self.name}.", ("hidden_states_bias", "hidden_states_scale", "residual_bias", "residual_scale")
        fills: dict[str, Fill] = {part: "ones" if part.endswith("scale") else "zeros" for part in parts}
        return {part: vector(f"{at}{part}", self.size, fill=fill, dtype="float32") for part, fill in fills.items()}
