"""Short convolutions between two gates (LFM2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from thalweg.hal.kv import StateSpec, state_part
from thalweg.models.weights import Source, Weight, Weights, linear, vector


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortConv:
    """out(c * conv(b * x)), where one projection gives b, c and x."""

    inner: int
    """Channels."""
    kernel: int
    """Tokens the convolution sees, its own included."""
    bias: bool = False
    """Of all three."""
    name: str = "conv"
    rope: ClassVar[None] = None

    def __post_init__(self) -> None:
        if self.kernel < 2:
            raise ValueError(f"ShortConv: a convolution over {self.kernel} tokens is none")

    @property
    def widths(self) -> tuple[int, int, int]:
        """As in attention: b, c and x, and their result."""
        return self.inner, 2 * self.inner, 1

    def keeps(self, dtype: str, kv_dtype: str, max_len: int, ranks: int) -> StateSpec:
        """The last inputs of the convolution."""
        return StateSpec((state_part("conv", (self.kernel - 1, self.inner // ranks), dtype),))

    def weights(self, at: str, hidden: int) -> Weights:
        at, n = f"{at}{self.name}.", self.inner
        conv: dict[str, Weight] = {"weight": Weight((Source(f"{at}conv.weight", (n, 1, self.kernel)),), 0)}
        if self.bias:
            conv["bias"] = vector(f"{at}conv.bias", n, shard=0)
        parts = {f"{at}{k}": n for k in ("b", "c", "x")}
        return {
            "in": linear(parts, hidden, shard=0, bias=self.bias, fused=f"{at}in_proj"),
            "conv": conv,
            "out": linear({f"{at}out_proj": hidden}, n, shard=1, bias=self.bias),
        }
