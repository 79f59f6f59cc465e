"""The Q-Former: learned queries read windows of an encoder's states."""

from __future__ import annotations

from torch.nn import functional

from thalweg.hal.ops.activation import activate
from thalweg.hal.parts.patches import Patches
from thalweg.hal.step import Array, StepBatch
from thalweg.models import spec
from thalweg.models.context import Context
from thalweg.models.vision.bound_parts import BoundParts, Parts


class QFormer:
    """x [T, source] -> [windows * queries, outputs]. The last window is filled up with zeros."""

    def __init__(self, ctx: Context, s: spec.QFormerSpec, weights: Parts) -> None:
        self._spec, self._parts = s, BoundParts(ctx, weights, s.norm(""))
        self.specs = self._parts.specs

    def __call__(self, p: Parts, x: Array) -> Array:
        s = self._spec
        windows = fill_block(x, s.window)
        count = windows.shape[0] // s.window
        return self._parts.linear("/out", p["out"], self._read(p, p["query"][0].repeat(count, 1), windows, count))

    def _read(self, p: Parts, queries: Array, windows: Array, count: int) -> Array:
        """queries [count * queries, hidden], windows [count * window, source]: the outputs of the last layer."""
        y = self._parts.norm("/enter", p["enter"], queries)
        for i in range(self._spec.layers):
            at, layer = f"/layers/{i}", p["layers"][i]
            y = self._attend(f"{at}/own", layer["own"], y, y, count)
            if self._spec.attends(i):
                y = self._attend(f"{at}/window", layer["window"], y, windows, count)
            y = self._feed(at, layer, y)
        return y

    def _feed(self, at: str, p: Parts, x: Array) -> Array:
        """The feed-forward part, with the norm behind it."""
        inner = activate(self._parts.linear(f"{at}/up", p["up"], x), self._spec.act)
        return self._parts.norm(f"{at}/norm", p["norm"], x + self._parts.linear(f"{at}/down", p["down"], inner))

    def _attend(self, at: str, p: Parts, x: Array, source: Array, count: int) -> Array:
        """x [count * queries, hidden], source [count * N, inputs]."""
        heads = (count, -1, self._spec.heads, self._spec.hidden // self._spec.heads)
        q = self._parts.linear(f"{at}/q", p["q"], x).view(heads).transpose(1, 2)
        k, v = (each.reshape(heads).transpose(1, 2) for each in self._parts.linear(f"{at}/kv", p["kv"], source).chunk(2, -1))
        y = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
        return self._parts.norm(f"{at}/norm", p["norm"], x + self._parts.linear(f"{at}/out", p["out"], y))


class ViewQFormer:
    """As a resampler of views, each of which is a window: x [views * window, source] -> [views * queries, outputs]."""

    def __init__(self, ctx: Context, s: spec.QFormerSpec, weights: Parts) -> None:
        self._reads = QFormer(ctx, s, weights)
        self.specs = self._reads.specs

    def __call__(self, p: Parts, x: Array, patches: Patches, batch: StepBatch) -> Array:
        """patches, batch: unused, as views are equally large and come in order."""
        return self._reads(p, x)


def fill_block(x: Array, size: int) -> Array:
    """x [T, N] with rows of zeros up to a multiple of size."""
    return functional.pad(x, (0, 0, 0, -x.shape[0] % size))
