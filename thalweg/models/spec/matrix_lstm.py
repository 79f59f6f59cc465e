"""The matrix LSTM (xLSTM)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from thalweg.hal.kv import StateSpec, state_part
from thalweg.models.weights import Weights, linear, vector


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixLSTM:
    """out(sigmoid(o) * norm(h)), where h reads a matrix per head (`ops.matrix_lstm`) with exponential gates."""

    heads: int
    key_dim: int
    value_dim: int
    """Of a head, as key_dim."""
    cap: float
    """Both gates become cap * tanh(gate / cap) first."""
    eps: float
    """Of the denominator."""
    norm_eps: float
    """Of the norm of each head's output."""
    fused: bool = False
    """One tensor of q, k, v and o, and one of both gates."""
    name: str = "mlstm_layer"
    rope: ClassVar[None] = None

    @property
    def widths(self) -> tuple[int, int, int]:
        return self.heads, 3 * self.heads, max(self.key_dim, self.value_dim)

    def keeps(self, dtype: str, kv_dtype: str, max_len: int, ranks: int) -> StateSpec:
        """A matrix per head, with a row and a column for the normaliser."""
        return StateSpec((state_part("mlstm", (self.heads, self.key_dim + 1, self.value_dim + 1), "float32"),))

    def weights(self, at: str, hidden: int) -> Weights:
        at, k, v = f"{at}{self.name}.", self.heads * self.key_dim, self.heads * self.value_dim
        parts = {f"{at}q": k, f"{at}k": k, f"{at}v": v, f"{at}ogate_preact": v}
        gates = {f"{at}igate_preact": self.heads, f"{at}fgate_preact": self.heads}
        return {
            "in": linear(parts, hidden, shard=None, fused=f"{at}qkv_opreact" if self.fused else ""),
            "gates": linear(gates, hidden, shard=None, bias=True, fused=f"{at}ifgate_preact" if self.fused else ""),
            "norm": vector(f"{at}multihead_norm.weight", v, fill="ones", dtype="float32"),
            "out": linear({f"{at}out_proj": hidden}, v, shard=None),
        }
