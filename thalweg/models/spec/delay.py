"""A gated MLP whose inputs are scaled by a function of the model's delay."""

from __future__ import annotations

from dataclasses import dataclass

from thalweg.models.spec.mlp import MLP
from thalweg.models.spec.vision import plain
from thalweg.models.weights import Source, Weight, Weights

RANK = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayMLP:
    """mlp(x * (1 + up(gelu(down(t))))), where t has the cosines and sines of the delay."""

    mlp: MLP
    delay: int
    """Tokens by which a transcript follows its audio."""
    name: str = "ada_rms_norm"

    @property
    def width(self) -> int:
        return self.mlp.width

    def weights(self, at: str, hidden: int) -> Weights:
        at = f"{at}{self.name}."
        scale = {
            "down": Weight((Source(f"{at}linear1.weight", (RANK, hidden)),)),
            "up": Weight((Source(f"{at}linear2.weight", (hidden, RANK)),)),
        }
        return {**self.mlp.weights(at.removesuffix(f"{self.name}."), hidden), "scale": plain(scale)}
