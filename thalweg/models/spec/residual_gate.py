"""Sums of the residual stream and a part's output with learned weights per channel (Muse Spark)."""

from __future__ import annotations

from dataclasses import dataclass

from thalweg.models.weights import Weights, vector


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidualGate:
    """The operation after one part of a layer: alpha * stream + beta * output, where beta is the sigmoid of
    g = gate / temperature, and alpha the root of sigmoid(-g) * (1 + beta), which is at least `least`."""

    size: int
    temperature: float
    name: str
    least: float = 1e-3

    def weights(self, at: str, hidden: int) -> Weights:
        return {"weight": vector(f"{at}{self.name}.gate", self.size, fill="zeros", dtype="float32")}
