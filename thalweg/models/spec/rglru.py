"""The real-gated linear recurrent unit (RG-LRU) in its block (De et al. 2024, Griffin, https://arxiv.org/abs/2402.19427)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from thalweg.hal.kv import StateSpec, state_part
from thalweg.models.weights import Source, TensorView, Weight, Weights, linear, vector


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedRecurrence:
    """One projection of x goes through a short convolution, then a recurrence with a decay per channel. The activation of
    another one multiplies the result. Decay and input of the recurrence have gates, with a matrix per head."""

    inner: int
    """Channels."""
    heads: int
    kernel: int
    """Tokens a convolution sees, its own included."""
    act: str
    name: str = "temporal_block"
    rope: ClassVar[None] = None

    def __post_init__(self) -> None:
        if self.inner % self.heads or self.kernel < 2:
            raise ValueError(f"GatedRecurrence: {self.heads} heads of {self.inner} channels, a convolution of {self.kernel}")

    @property
    def widths(self) -> tuple[int, int, int]:
        """As in attention: channels of both projections, both gates and the output."""
        return self.inner, 2 * self.inner, 1

    def keeps(self, dtype: str, kv_dtype: str, max_len: int, ranks: int) -> StateSpec:
        """The last inputs of the convolution, and a number per channel."""
        return StateSpec((
            state_part("conv", (self.kernel - 1, self.inner), dtype), state_part("lru", (1, self.inner), "float32"),
        ))  # fmt: skip

    def weights(self, at: str, hidden: int) -> Weights:
        at, n = f"{at}{self.name}.", self.inner
        return {
            "in": linear({f"{at}linear_x": n, f"{at}linear_y": n}, hidden, shard=0, bias=True),
            "conv": {
                "weight": Weight((Source(f"{at}conv_1d.weight", (n, 1, self.kernel)),)), "bias": vector(f"{at}conv_1d.bias", n),
            },
            "input_gate": self._gate(f"{at}rg_lru.input_gate"),
            "decay_gate": self._gate(f"{at}rg_lru.recurrent_gate"),
            "rate": vector(f"{at}rg_lru.recurrent_param", n, dtype="float32"),
            "out": linear({f"{at}linear_out": hidden}, n, shard=1, bias=True),
        }  # fmt: skip

    def _gate(self, name: str) -> Weights:
        """A matrix [inputs, outputs] per head, in one tensor."""
        size = self.inner // self.heads
        stored = (self.heads, size, size)
        each = (
            Source(f"{name}_weight.{h}", (size, size), within=TensorView(f"{name}_weight", stored, at=h))
            for h in range(self.heads)
        )
        return {
            "weight": Weight(tuple(each)), "bias": Weight((Source(f"{name}_bias", (self.heads, size)),)),
        }  # fmt: skip
