"""An MoE with a result that skips a layer (shortcut-connected, LongCat-Flash)."""

from __future__ import annotations

from dataclasses import dataclass

from thalweg.models.spec.mlp import MLP
from thalweg.models.spec.moe import MoE
from thalweg.models.weights import Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortcutMoE:
    """An MLP, and an MoE of the same x. The next such part of a model adds the MoE's output to its result."""

    mlp: MLP
    moe: MoE | None = None
    """None: this part adds the output of the MoE before it."""

    @property
    def width(self) -> int:
        return max(self.mlp.width, self.moe.width if self.moe else 0)

    def weights(self, at: str, hidden: int) -> Weights:
        result = {"mlp": self.mlp.weights(at, hidden)}
        return result if self.moe is None else result | {"moe": self.moe.weights(at, hidden)}
