"""The conformer of Granite Speech: a clip's stacked spectra in, a vector for each placeholder out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional

from thalweg.hal.ops.activation import activate
from thalweg.hal.parts.frames import Frames
from thalweg.hal.step import Array, Params, State, Step, StepBatch, StepResult
from thalweg.models import spec
from thalweg.models.context import Context
from thalweg.models.layers.linear import Linear
from thalweg.models.layers.norm import build_norm
from thalweg.models.weights import ParamSpec, Weight

Parts = Mapping[str, Any]


class BoundParts:
    """Linear layers and norms of a tree of weights, called by their paths. Other parameters are passed as they are."""

    def __init__(self, ctx: Context, weights: Parts, norm: spec.LayerNorm) -> None:
        """norm: settings of all norms."""
        self._ctx, self._norm, self._bound = ctx, norm, dict[str, Any]()
        self.specs: dict[str, Any] = {key: self._bind(f"/{key}", part) for key, part in weights.items()}

    def _bind(self, path: str, part: Any) -> Any:
        if isinstance(part, Weight):
            return ParamSpec(part, self._ctx.dtype)
        matrix = part.get("weight")
        if isinstance(matrix, Weight) and "mean" not in part:
            wide = len(matrix.sources[0].shape) > 1
            self._bound[path] = Linear(self._ctx, part) if wide else build_norm(self._ctx, self._norm, part)
            return self._bound[path].specs
        return {key: self._bind(f"{path}/{key}", each) for key, each in part.items()}

    def linear(self, path: str, p: Parts, x: Array) -> Array:
        made: Array = self._bound[path](p, x, None)
        return made

    def norm(self, path: str, p: Parts, x: Array) -> Array:
        made: Array = self._bound[path](p, x)
        return made


class Conformer:
    """Holds no tensors: parameters are passed."""

    attention = None
    """Its attention is within blocks, with learned distances, and uses no backend."""

    def __init__(self, ctx: Context, s: spec.ConformerSpec, weights: Parts, block: Callable[..., Any]) -> None:
        """block: unused, as its layers are of another kind."""
        ctx = ctx.of_encoder()
        self.spec, self._dtype = s, getattr(torch, ctx.dtype)
        own = {key: part for key, part in weights.items() if key != "projector"}
        self._parts = BoundParts(ctx, own, s.norm(""))
        self._projector = QFormer(ctx, s.projector, weights["projector"])
        self.specs: dict[str, Any] = {**self._parts.specs, "projector": self._projector.specs}

    @property
    def depth(self) -> int:
        """As of `VisionEncoder`."""
        return self.spec.layers

    def part(self, first: int, last: int, carried: dict[str, Any]) -> Step:
        """As of `VisionEncoder`: `StepResult.pooled` is f32[N, hidden of the language model]."""

        def step(params: Params, state: State, batch: StepBatch) -> tuple[State, StepResult]:
            frames = batch.get(Frames)
            assert frames is not None
            x = carried.pop("x") if first else self._enter(params, frames)
            for i in range(first, last):
                x = self._layer(f"/layers/{i}", params["layers"][i], x)
                if i + 1 == self.spec.layers // 2:
                    x = x + self._feedback(params, x)
            out = None
            if last < self.depth:
                carried["x"] = x
            else:
                out = self._projector(params["projector"], x).to(torch.float32)
            zeros = torch.zeros_like(batch.slots)
            return state, StepResult(zeros.unsqueeze(1), zeros, pooled=out)

        return step

    def _enter(self, params: Params, frames: Frames) -> Array:
        """[T, hidden]."""
        return self._parts.linear("/enter", params["enter"], frames.mel[0].T.contiguous().to(self._dtype))

    def _feedback(self, params: Params, x: Array) -> Array:
        """The probabilities of labels, projected."""
        labels = self._parts.linear("/classes", params["classes"], x).softmax(-1)
        return self._parts.linear("/feedback", params["feedback"], labels)

    def _layer(self, at: str, p: Parts, x: Array) -> Array:
        x = x + 0.5 * self._feed_forward(f"{at}/ff1", p["ff1"], x)
        x = x + self._attend(f"{at}/attn", p["attn"], x)
        x = x + self._convolve(f"{at}/conv", p["conv"], x)
        x = x + 0.5 * self._feed_forward(f"{at}/ff2", p["ff2"], x)
        return self._parts.norm(f"{at}/norm", p["norm"], x)

    def _feed_forward(self, at: str, p: Parts, x: Array) -> Array:
        x = self._parts.linear(f"{at}/up", p["up"], self._parts.norm(f"{at}/norm", p["norm"], x))
        return self._parts.linear(f"{at}/down", p["down"], functional.silu(x))

    def _attend(self, at: str, p: Parts, x: Array) -> Array:
        """Within blocks of `context` frames, with a learned vector for each distance (Shaw et al. 2018)."""
        s, n = self.spec, x.shape[0]
        x = self._parts.norm(f"{at}/norm", p["norm"], x)
        shape = (-1, s.context, s.heads, s.head_dim)
        q = _fill_block(self._parts.linear(f"{at}/q", p["q"], x), s.context).view(shape).transpose(1, 2)
        kv = _fill_block(self._parts.linear(f"{at}/kv", p["kv"], x), s.context)
        k, v = (each.reshape(shape).transpose(1, 2) for each in kv.chunk(2, -1))
        place = torch.arange(s.context, device=x.device)
        far = p["far"].index_select(0, (place[:, None] - place + s.reach).flatten()).view(s.context, s.context, s.head_dim)
        scores = (q @ k.transpose(2, 3) + torch.einsum("bhcd,crd->bhcr", q, far)).float() * s.head_dim**-0.5
        rows = torch.arange(scores.shape[0] * s.context, device=x.device).view(-1, 1, 1, s.context)
        share = scores.masked_fill(rows >= n, -torch.inf).softmax(-1)
        y = (share.to(v.dtype) @ v).transpose(1, 2).reshape(-1, s.heads * s.head_dim)[:n]
        return self._parts.linear(f"{at}/out", p["out"], y.contiguous())

    def _convolve(self, at: str, p: Parts, x: Array) -> Array:
        s, batch = self.spec, p["batch"]
        x = self._parts.norm(f"{at}/norm", p["norm"], x)
        x = functional.glu(self._parts.linear(f"{at}/up", p["up"], x), -1).T
        left = s.kernel // 2
        x = functional.pad(x, (left, left - (s.kernel + 1) % 2))
        x = functional.conv1d(x[None], p["depth"], groups=s.channels)
        x = functional.batch_norm(x, batch["mean"], batch["var"], batch["weight"], batch["bias"])
        return self._parts.linear(f"{at}/down", p["down"], functional.silu(x)[0].T.contiguous())


class QFormer:
    """x [T, source] -> [windows * queries, outputs]. The last window is filled up with zeros."""

    def __init__(self, ctx: Context, s: spec.QFormerSpec, weights: Parts) -> None:
        self._spec, self._parts = s, BoundParts(ctx, weights, s.norm(""))
        self.specs = self._parts.specs

    def __call__(self, p: Parts, x: Array) -> Array:
        s = self._spec
        windows = _fill_block(x, s.window)
        count = windows.shape[0] // s.window
        y = self._parts.norm("/enter", p["enter"], p["query"][0]).repeat(count, 1)
        for i in range(s.layers):
            at, layer = f"/layers/{i}", p["layers"][i]
            y = self._attend(f"{at}/own", layer["own"], y, y, count)
            if s.attends(i):
                y = self._attend(f"{at}/window", layer["window"], y, windows, count)
            inner = activate(self._parts.linear(f"{at}/up", layer["up"], y), s.act)
            y = self._parts.norm(f"{at}/norm", layer["norm"], y + self._parts.linear(f"{at}/down", layer["down"], inner))
        return self._parts.linear("/out", p["out"], y)

    def _attend(self, at: str, p: Parts, x: Array, source: Array, count: int) -> Array:
        """x [count * queries, hidden], source [count * N, inputs]."""
        heads = (count, -1, self._spec.heads, self._spec.hidden // self._spec.heads)
        q = self._parts.linear(f"{at}/q", p["q"], x).view(heads).transpose(1, 2)
        k, v = (each.reshape(heads).transpose(1, 2) for each in self._parts.linear(f"{at}/kv", p["kv"], source).chunk(2, -1))
        y = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
        return self._parts.norm(f"{at}/norm", p["norm"], x + self._parts.linear(f"{at}/out", p["out"], y))


def _fill_block(x: Array, size: int) -> Array:
    """x [T, N] with rows of zeros up to a multiple of size."""
    return functional.pad(x, (0, 0, 0, -x.shape[0] % size))
