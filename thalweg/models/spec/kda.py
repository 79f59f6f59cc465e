"""Delta nets with states that decay by channel (Kimi Delta Attention)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from thalweg.hal.kv import StateSpec, state_part
from thalweg.models.spec.norm import Norm
from thalweg.models.weights import Source, TensorView, Weight, Weights, linear, vector


@dataclass(frozen=True, slots=True, kw_only=True)
class KimiDelta:
    """q, k and v through short convolutions, then a recurrence (`ops.channel_delta_rule`). Its state is the whole state of a
    sequence. Its decay, and the gate of its normed heads, are projections of x, low-rank ones unless `full`."""

    heads: int
    dim: int
    """Of a head of q, k and v, and the rank of the projections of x to decay and gate."""
    kernel: int
    """Tokens a convolution sees, its own included."""
    eps: float
    act: str = "silu"
    """After the convolutions."""
    full: bool = False
    """Decay and gate have one matrix each, f_proj and g_proj."""
    full_gate: bool = False
    """Only the gate has one matrix, g_proj."""
    rates: int = 0
    """Numbers in the tensor of decay rates, of which the first ones count; 0 = one per head."""
    flat: bool = False
    """The tensor of decay rates has one dimension. Always so with `full`."""
    floor: float = 0.0
    """As in `ops.channel_delta_gates`."""
    name: str = "self_attn"
    rope: ClassVar[None] = None

    def __post_init__(self) -> None:
        if self.full and self.full_gate:
            raise ValueError("KimiDelta: full is more than full_gate")
        if self.rates and (self.rates < self.heads or not self.flat):
            raise ValueError("KimiDelta: a tensor of more rates than heads has one dimension")
        if self.kernel < 2:
            raise ValueError(f"KimiDelta: a convolution over {self.kernel} tokens is none")

    @property
    def inner(self) -> int:
        return self.heads * self.dim

    @property
    def widths(self) -> tuple[int, int, int]:
        """As attention's: q, k and v, decay and gate."""
        return self.heads, 2 * self.heads, self.dim

    def keeps(self, dtype: str, kv_dtype: str, max_len: int, ranks: int) -> StateSpec:
        """The last inputs of the convolutions, and a matrix for each head."""
        return StateSpec((
            state_part("conv", (self.kernel - 1, 3 * self.inner // ranks), dtype),
            state_part("delta", (self.heads // ranks, self.dim, self.dim), "float32"),
        ))  # fmt: skip

    def weights(self, at: str, hidden: int) -> Weights:
        at, n = f"{at}{self.name}.", self.inner
        rate = TensorView(f"{at}A_log", (1, 1, self.heads, 1), turned=True, flat=True)
        parts = {**{f"{at}{p}_proj": n for p in "qkv"}, f"{at}b_proj": self.heads}
        projected = {
            "in": linear(parts, hidden, shard=0),
            "low": linear({f"{at}f_a_proj": self.dim, f"{at}g_a_proj": self.dim}, hidden, shard=None),
            "decay": linear({f"{at}f_b_proj": n}, self.dim, shard=0),
            "gate": linear({f"{at}g_b_proj": n}, self.dim, shard=0),
        }
        if self.full or self.flat:
            rate = TensorView(f"{at}A_log", (self.rates or self.heads,), flat=True)
        if self.full_gate:
            projected["in"] = linear({**parts, f"{at}g_proj": n}, hidden, shard=0)
            projected["low"] = linear({f"{at}f_a_proj": self.dim}, hidden, shard=None)
            del projected["gate"]
        if self.full:
            projected = {"in": linear({**parts, **{f"{at}{p}_proj": n for p in "fg"}}, hidden, shard=0)}
        return {
            **projected,
            "conv": {"weight": Weight(tuple(Source(f"{at}{p}_conv1d.weight", (n, 1, self.kernel)) for p in "qkv"), 0)},
            "rate": {
                "log": Weight((Source(f"{at}A_log.flat", (self.heads, 1), within=rate),), 0, dtype="float32"),
                "bias": vector(f"{at}dt_bias", n, shard=0, fill="ones", dtype="float32"),
            },
            "norm": Norm("o_norm", self.dim, self.eps).weights(at),
            "out": linear({f"{at}o_proj": hidden}, n, shard=1),
        }
