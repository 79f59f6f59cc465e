"""An MLP parallel to an MoE."""

from __future__ import annotations

from dataclasses import dataclass

from thalweg.models.spec.mlp import MLP
from thalweg.models.spec.moe import MoE
from thalweg.models.spec.norm import Norm
from thalweg.models.weights import Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelMoE:
    """An MLP and an MoE that read the same x, each between two norms, and are added. A layer with this part has no norm before
    it: the router reads x itself."""

    mlp: MLP
    moe: MoE
    mlp_in: Norm
    mlp_out: Norm
    moe_out: Norm

    @property
    def width(self) -> int:
        return max(self.mlp.width, self.moe.width)

    def weights(self, at: str, hidden: int) -> Weights:
        norms = {k: getattr(self, k).weights(at) for k in ("mlp_in", "mlp_out", "moe_out")}
        return {"mlp": self.mlp.weights(at, hidden), "moe": self.moe.weights(at, hidden), **norms}
