"""A mixture of experts whose result skips a layer (shortcut-connected, LongCat-Flash)."""

from __future__ import annotations

from dataclasses import dataclass

from thalweg.models.spec.mlp import MLP
from thalweg.models.spec.moe import MoE
from thalweg.models.weights import Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortcutMoE:
    """An MLP, and a mixture of the same x that the next such part of a model adds to what it gives."""

    mlp: MLP
    moe: MoE | None = None
    """None: this part adds what the one before it carried."""

    @property
    def width(self) -> int:
        return max(self.mlp.width, self.moe.width if self.moe else 0)

    def weights(self, at: str, hidden: int) -> Weights:
        made = {"mlp": self.mlp.weights(at, hidden)}
        return made if self.moe is None else made | {"moe": self.moe.weights(at, hidden)}
