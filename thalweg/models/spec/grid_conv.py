"""Convolutions over the patches of an image between two gates (LFM3-VL)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from thalweg.hal.kv import StateSpec
from thalweg.models.weights import Source, TensorView, Weight, Weights, linear


@dataclass(frozen=True, slots=True, kw_only=True)
class GridConv:
    """out(c * conv(b * x)), where one projection gives b, c and x, and each channel has a kernel over a patch and its
    neighbours. Only in image encoders: `Patches.place` has the neighbours of each patch (`VisionSpec.neighbours`)."""

    inner: int
    """Channels."""
    kernel: int
    """Rows and columns of patches."""
    name: str = "conv"
    rope: ClassVar[None] = None

    @property
    def widths(self) -> tuple[int, int, int]:
        """As in attention: b, c and x, and their result."""
        return self.inner, 2 * self.inner, 1

    def keeps(self, dtype: str, kv_dtype: str, max_len: int, ranks: int) -> StateSpec:
        """Nothing: an image is encoded in one pass."""
        return StateSpec(())

    def weights(self, at: str, hidden: int) -> Weights:
        at, n, k = f"{at}{self.name}.", self.inner, self.kernel
        view = TensorView(f"{at}spatial_conv.weight", (n, 1, k, k), flat=True)
        return {
            "in": linear({f"{at}{part}": n for part in ("b", "c", "x")}, hidden, shard=0, fused=f"{at}in_proj"),
            "conv": {"weight": Weight((Source(f"{at}spatial_conv.weight.flat", (n, k * k), within=view),))},
            "out": linear({f"{at}out_proj": hidden}, n, shard=1),
        }
