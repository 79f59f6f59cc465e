"""Feed-forward parts of which few inner values are not zero."""

from __future__ import annotations

from dataclasses import dataclass

from thalweg.models.spec.mlp import MLP


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseMLP(MLP):
    """down(act(relu(gate(x) - cut)) * up(x)). The threshold `cut` exceeds the share `sparsity` of a token's gates, assuming a
    normal distribution. It is computed from all inner values, which ranks gather for it."""

    sparsity: float

    def __post_init__(self) -> None:
        if not 0 < self.sparsity < 1 or self.bias:
            raise ValueError(f"SparseMLP: a share between 0 and 1 without biases, not {self.sparsity}")
