"""Mamba's selective scans, with a separate state for each channel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from thalweg.hal.kv import StateSpec, state_part
from thalweg.models.spec.norm import Norm
from thalweg.models.weights import Source, Weight, Weights, linear, vector


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba:
    """Half of a projection goes through a short convolution. From there come the scan's steps, B and C
    (`ops.selective_scan`). The other half gates the scan's output."""

    inner: int
    """Channels."""
    state: int
    """State values per channel."""
    rank: int
    """Values between the two projections that give a channel's step."""
    kernel: int
    """Tokens a convolution sees, its own included."""
    act: str = "silu"
    bias: bool = False
    """Of the first projection and of the last."""
    conv_bias: bool = True
    norms: tuple[str, str, str] | None = None
    """RMSNorms of dt, B and C. "" = without a weight; None = no norms."""
    eps: float = 1e-6
    """Of these."""
    remembered: bool = False
    """`GatedMemory` parts of later layers read the scan's output, before its gate."""
    name: str = "mixer"
    rope: ClassVar[None] = None

    def __post_init__(self) -> None:
        if self.kernel < 2:
            raise ValueError(f"Mamba: a convolution over {self.kernel} tokens is none")

    @property
    def norm_sizes(self) -> tuple[int, int, int]:
        """Values that each norm is over."""
        return self.rank, self.state, self.state

    @property
    def widths(self) -> tuple[int, int, int]:
        """As in attention: channels of both halves, of steps and of the output."""
        return self.inner, 2 * self.inner, 1

    def keeps(self, dtype: str, kv_dtype: str, max_len: int, ranks: int) -> StateSpec:
        """The last inputs of the convolution, and each channel's state."""
        inner = self.inner // ranks
        return StateSpec((
            state_part("conv", (self.kernel - 1, inner), dtype), state_part("scan", (self.state, inner), "float32"),
        ))  # fmt: skip

    def weights(self, at: str, hidden: int) -> Weights:
        at, n = f"{at}{self.name}.", self.inner
        conv: dict[str, Weight] = {"weight": Weight((Source(f"{at}conv1d.weight", (n, 1, self.kernel)),), 0)}
        if self.conv_bias:
            conv["bias"] = vector(f"{at}conv1d.bias", n, shard=0)
        norms = {
            i: Norm(name, size, self.eps).weights(at)
            for i, (name, size) in enumerate(zip(self.norms or (), self.norm_sizes, strict=False))
            if name
        }
        return {
            "in": linear({f"{at}x": n, f"{at}z": n}, hidden, shard=0, bias=self.bias, fused=f"{at}in_proj"),
            "conv": conv,
            "chosen": linear({f"{at}x_proj": self.rank + 2 * self.state}, n, shard=1),
            "norms": norms,
            "step": linear({f"{at}dt_proj": n}, self.rank, shard=0),
            "rate": {
                "log": Weight((Source(f"{at}A_log", (n, self.state)),), 0, dtype="float32"),
                "bias": vector(f"{at}dt_proj.bias", n, shard=0, dtype="float32"),
                "skip": vector(f"{at}D", n, shard=0, fill="ones", dtype="float32"),
            },
            "out": linear({f"{at}out_proj": hidden}, n, shard=1, bias=self.bias),
        }
