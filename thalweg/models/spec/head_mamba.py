"""Mamba with several heads, each with its own projections of steps, B and C (Zamba)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from thalweg.hal.kv import StateSpec, state_part
from thalweg.models.weights import Source, TensorView, Weight, Weights, attach_views, linear, vector


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadMamba:
    """A projection and a convolution of all channels, then a selective scan of each head's channels (`ops.selective_scan`)."""

    heads: int
    head_dim: int
    state: int
    """State values per channel."""
    rank: int
    """Values between the two projections that give a channel's step."""
    kernel: int
    act: str = "silu"
    conv_bias: bool = True
    name: str = "mamba"
    rope: ClassVar[None] = None

    @property
    def inner(self) -> int:
        return self.heads * self.head_dim

    @property
    def widths(self) -> tuple[int, int, int]:
        return self.inner, 2 * self.inner, 1

    def keeps(self, dtype: str, kv_dtype: str, max_len: int, ranks: int) -> StateSpec:
        """The last inputs of the convolution, and the state of each head."""
        scan = state_part("scan", (self.state, self.head_dim), "float32")
        return StateSpec((state_part("conv", (self.kernel - 1, self.inner), dtype), *[scan] * self.heads))

    def weights(self, at: str, hidden: int) -> Weights:
        """Rows of the first projection are of x and of the gate in turn."""
        at, n, outputs = f"{at}{self.name}.", self.inner, self.rank + 2 * self.state
        both = linear({f"{at}x": n, f"{at}z": n}, hidden, shard=None)
        views = [TensorView(f"{at}in_proj.weight", (2 * n, hidden), first=i, step=2) for i in (0, 1)]
        conv: dict[str, Weight] = {"weight": Weight((Source(f"{at}conv1d.weight", (n, 1, self.kernel)),))}
        if self.conv_bias:
            conv["bias"] = vector(f"{at}conv1d.bias", n)
        return {
            "in": {"weight": attach_views(both["weight"], views)}, "conv": conv,
            "chosen": self._each(f"{at}x_proj_weight", outputs, self.head_dim),
            "step": self._each(f"{at}dt_proj_weight", self.head_dim, self.rank),
            "rate": {
                key: Weight((Source(f"{at}{name}", (self.heads, self.head_dim, *more)),), dtype="float32")
                for key, name, more in (("log", "A_log", (self.state,)), ("bias", "dt_proj_bias", ()), ("skip", "D", ()))
            },
            "out": linear({f"{at}out_proj": hidden}, n, shard=None),
        }  # fmt: skip

    def _each(self, name: str, outputs: int, inputs: int) -> Weight:
        """A matrix per head, in one tensor."""
        view = TensorView(name, (self.heads, outputs, inputs))
        sources = tuple(Source(f"{name}.{h}", (outputs, inputs)) for h in range(self.heads))
        return attach_views(Weight(sources), [TensorView(view.name, view.shape, at=h) for h in range(self.heads)])
