"""The vision encoder: a step with patches as tokens and vectors as result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.nn import functional

from thalweg.hal import ops
from thalweg.hal.attention import AttentionBackend, AttnSpec
from thalweg.hal.parts.patches import Patches
from thalweg.hal.step import Array, Params, State, Step, StepBatch, StepResult
from thalweg.models import spec
from thalweg.models.context import Context
from thalweg.models.flow import Flow, MixerRef
from thalweg.models.layers.linear import Linear
from thalweg.models.layers.norm import BoundNorm, ScaleLayer, build_norm
from thalweg.models.vision.pool import AttentionPool
from thalweg.models.vision.resampler import sines
from thalweg.models.vision.resamplers import build_resampler
from thalweg.models.weights import ParamSpec

SOFTMAX = "softmax"
"""`ProjectorLayer.act` of probabilities."""
FULL, WINDOWED, SHRUNK = 0, 1, 2
"""Indices in `StepBatch.metadata`: of sequences that are images, of windows, and of images after merging patches."""


class Projector:
    """[T, hidden] -> [N, hidden of the language model]."""

    def __init__(self, ctx: Context, s: spec.ProjectorSpec, weights: Mapping[str, Any]) -> None:
        self._group, self._join, self._padded = s.group, s.join, s.padded
        self._parts = s.steps[0].parts if s.steps else 1
        self._before = None if s.before is None else build_norm(ctx, s.before, weights["before"])
        self._after: list[BoundNorm] = [build_norm(ctx, norm, weights["after"][i]) for i, norm in enumerate(s.after)]
        self._steps = [Linear(ctx, weights["steps"][i]) for i in range(len(s.steps))]
        self._acts = [
            ctx.bind(ops.activation, act=each.act, size=each.outputs // (1 + each.gated))
            if each.act not in ("", SOFTMAX)
            else None
            for each in s.steps
        ]
        self._spec = s.steps
        self._norms = [
            None if s.norm is None else build_norm(ctx, s.norm, weights["steps"][i]["norm"]) for i, s in enumerate(s.steps)
        ]
        self._dtype = getattr(torch, ctx.dtype)
        self.specs: dict[str, Any] = {"steps": {i: each.specs for i, each in enumerate(self._steps)}}
        self.specs["steps"] |= {
            i: {**self._steps[i].specs, "norm": norm.specs} for i, norm in enumerate(self._norms) if norm is not None
        }
        self._entries = s.entries or (0,) * len(s.learned)
        self._leave = None if s.leave is None else build_norm(ctx, s.leave, weights["leave"])
        self._learned = range(len(s.learned))
        if s.learned:
            self.specs["learned"] = {i: ParamSpec(weights["learned"][i], ctx.dtype) for i in self._learned}
        if self._before is not None:
            self.specs["before"] = self._before.specs
        if self._leave is not None:
            self.specs["leave"] = self._leave.specs
        if self._after:
            self.specs["after"] = {i: norm.specs for i, norm in enumerate(self._after)}

    def __call__(self, p: Mapping[str, Any], x: Array, keep: Array, spin: Array | None = None) -> Array:
        """keep: i32[N * group], patches in concatenation order, or -1 (`ProjectorSpec.padded`). spin: f32[N, spin], cosines and
        sines that rotate neighbouring values of the concatenated vectors."""
        there = None
        if self._padded:
            there = (keep >= 0).to(x.dtype)
            x = x.index_select(0, keep.clamp(min=0)) * there.unsqueeze(1)
        else:
            x = x.index_select(0, keep)
        if self._before is not None:
            x = self._before(p["before"], x)
        if self._group > 1:
            x = self._join_vectors(x, self._group // self._parts)
        x = self._join_learned(p, x, 0)
        for i, norm in enumerate(self._after):  # kernels of norms require the model's dtype
            x = norm(p.get("after", {}).get(i), x if isinstance(norm, ScaleLayer) else x.to(self._dtype))
        x = x.to(self._dtype) if spin is None or not spin.shape[1] else _spun(x, spin).to(self._dtype)
        for i, step in enumerate(self._steps):
            if self._spec[i].copies > 1:
                x = torch.cat([x] * self._spec[i].copies, 1)
            x = self._step(i, p["steps"][i], step(p["steps"][i], x, None))
            if i == 0 and self._parts > 1:
                if there is not None:
                    x = x * there.view(len(x), -1).amax(1, keepdim=True)
                x = self._join_vectors(x, self._parts)
            x = self._join_learned(p, x, i + 1)
        return x if self._leave is None else self._leave(p["leave"], x.to(self._dtype))

    def _join_learned(self, p: Mapping[str, Any], x: Array, at: int) -> Array:
        """With the learned vectors that enter behind so many layers."""
        found = [p["learned"][i].view(1, -1) for i in self._learned if self._entries[i] == at]
        return torch.cat([x, *found]) if found else x

    def _join_vectors(self, x: Array, count: int) -> Array:
        """[N * count, size] -> [N, count * size], or [N, size] of means."""
        x = x.unflatten(0, (-1, count))
        return x.float().mean(1) if self._join == "mean" else (x.transpose(1, 2) if self._join == "channels" else x).flatten(1)

    def _step(self, i: int, p: Mapping[str, Any], x: Array) -> Array:
        """The steps after a product."""
        norm, act, spec = self._norms[i], self._acts[i], self._spec[i]
        if spec.grid:
            each = torch.ones_like(x[:, 0], dtype=torch.int64).cumsum(0) - 1
            at = torch.stack([torch.div(each, spec.grid, rounding_mode="floor") % spec.grid, each % spec.grid], 1)
            x = x + sines(at.float(), x.shape[1]).to(x.dtype)
        if norm is not None:
            x = norm(p["norm"], x)
        if spec.act == SOFTMAX:
            return functional.pad(x.softmax(-1), (0, spec.zeros))
        if act is None:
            return x
        if not spec.gated and not spec.up:
            return act(x)
        first, second = x.chunk(2, -1)
        gate, value = (first, second) if spec.up else (second, first)
        if spec.limit:
            gate, value = gate.clamp(max=spec.limit), value.clamp(-spec.limit, spec.limit)
        return act(gate.contiguous()) * value


def _spun(x: Array, spin: Array) -> Array:
    turns = spin.shape[1]
    first, second = x[:, :turns].float().unflatten(1, (-1, 2)).unbind(2)
    cos, sin = spin.chunk(2, 1)
    turned = torch.stack([first * cos - second * sin, second * cos + first * sin], 2).flatten(1)
    return torch.cat([turned, x[:, turns:].float()], 1)


class VisionEncoder:
    """Holds no tensors: parameters are passed."""

    def __init__(self, ctx: Context, s: spec.VisionSpec, weights: Mapping[str, Any], block: Callable[..., Any]) -> None:
        """block: builder of a layer."""
        ctx = ctx.of_encoder()
        self.spec = s
        self._patch = Linear(ctx, weights["patch"])
        self._video = Linear(ctx, weights["video"]) if s.video[0] else None
        self._places = ctx.bind(ops.embed, vocab=s.rows, size=s.hidden) if s.places else None
        self._embed_norm = None if s.embedded is None else build_norm(ctx, s.embedded, weights["embedded"])
        self._enter = None if s.enter is None else build_norm(ctx, s.enter, weights["enter"])
        self._leave = None if s.leave is None else build_norm(ctx, s.leave, weights["leave"])
        self._blocks = [
            block(ctx, layer, weights["layers"][i], [MixerRef(i, self._attention_kind(i), 0)])
            for i, layer in enumerate(s.layers)
        ]
        self._projector = Projector(ctx, s.projector, weights["projector"])
        self._shrinks = None if s.shrinks is None else Projector(ctx, s.shrinks[1], weights["shrinks"])
        self._taps = {layer: (i, Projector(ctx, p, weights["taps"][i])) for i, (layer, p) in enumerate(s.taps)}
        self.specs: dict[str, Any] = {
            "patch": self._patch.specs,
            "layers": {i: b.specs for i, b in enumerate(self._blocks)},
            "projector": self._projector.specs,
            "taps": {i: tap.specs for i, tap in self._taps.values()},
        }
        if self._video is not None:
            self.specs["video"] = self._video.specs
        if self._shrinks is not None:
            self.specs["shrinks"] = self._shrinks.specs
        self._pool = None if s.pool is None else AttentionPool(ctx, s.pool, weights["pool"])
        if self._pool is not None:
            self.specs["pool"] = self._pool.specs
        self._resampler = None if s.resampler is None else build_resampler(ctx, s.resampler, weights["resampler"])
        if self._resampler is not None:
            self.specs["resampler"] = self._resampler.specs
        if s.whole:
            self.specs["whole"] = ParamSpec(weights["whole"], ctx.dtype)
        if s.newline:
            self.specs["newline"] = ParamSpec(weights["newline"], ctx.dtype)
        if self._places is not None:
            self.specs["places"] = {"weight": ParamSpec(weights["places"]["weight"], ctx.dtype, self._places.pack)}
        for key, norm in (("embedded", self._embed_norm), ("enter", self._enter), ("leave", self._leave)):
            if norm is not None:
                self.specs[key] = norm.specs

    def _attention_kind(self, i: int) -> int:
        """How layer i sees the patches."""
        if i in self.spec.windowed:
            return WINDOWED
        return SHRUNK if self.spec.shrinks is not None and i > self.spec.shrinks[0] else FULL

    @property
    def attention(self) -> tuple[AttentionBackend, AttnSpec]:
        """Of its layers with attention, which are alike."""
        first = next(block.mixers[0] for block in self._blocks if block.mixers[0].backend is not None)
        return first.backend, first.spec

    @property
    def depth(self) -> int:
        """Number of layers. An encoding is one step of all layers, or several of some each (`part`)."""
        return len(self._blocks)

    def part(self, first: int, last: int, carried: dict[str, Any]) -> Step:
        """The step of layers [first, last), eager unless these are all. carried: values that one part passes to the next. The
        last part's `StepResult.pooled` is f32[N, width * hidden of the language model]."""

        def step(params: Params, state: State, batch: StepBatch) -> tuple[State, StepResult]:
            patches = batch.get(Patches)
            assert patches is not None
            begun = dict(carried)
            carried.clear()
            if first == 0:
                begun = {"x": self._embed_patches(params, patches), "residual": None, "tapped": (), "read": {}}
            passed, out = self._through(params, begun, batch, patches, range(first, last)), None
            if last == self.depth:
                out = self._project(params, passed, patches, batch)
            else:
                carried.update(passed)
            zeros = torch.zeros_like(batch.slots)
            return state, StepResult(zeros.unsqueeze(1), zeros, pooled=out)

        return step

    def _through(
        self, params: Params, begun: dict[str, Any], batch: StepBatch, patches: Patches, layers: range
    ) -> dict[str, Any]:
        x, residual, tapped, read = (begun[k] for k in ("x", "residual", "tapped", "read"))
        caches: list[Any] = [x.new_zeros(0)] * len(self._blocks)
        tables = {0: patches.turn}
        rows = torch.arange(len(patches.value), dtype=torch.int32, device=x.device)  # each has its own row of the table
        near = None
        if self.spec.neighbours:
            near = (rows.unsqueeze(1) + patches.place).to(torch.int32), patches.share
        flows = [Flow(each, caches, tables, rows=rows, near=near) for each in (batch, windows(batch))]
        if self.spec.shrinks is not None:
            group = self.spec.shrinks[1].group
            flows.append(Flow(shrunk(batch, group), caches, tables, rows=rows[: len(rows) // group]))
        for i in layers:
            x, residual = self._blocks[i](params["layers"][i], x, residual, flows[self._attention_kind(i)])
            if self._shrinks is not None and self.spec.shrinks is not None and i == self.spec.shrinks[0]:
                x, residual = x if residual is None else x + residual, None
                mean = x.unflatten(0, (-1, self.spec.shrinks[1].group)).float().mean(1)
                x = mean.to(x.dtype) + self._shrinks(params["shrinks"], x, rows)
            if i in self._taps:
                at, tap = self._taps[i]
                tapped = (*tapped, tap(params["taps"][at], x if residual is None else x + residual, patches.keep))
            if i in self.spec.reads:
                read = {**read, i: x if residual is None else x + residual}
        return {"x": x, "residual": residual, "tapped": tapped, "read": read}

    def _project(self, params: Params, passed: dict[str, Any], patches: Patches, batch: StepBatch) -> Array:
        x, residual = passed["x"], passed["residual"]
        if residual is not None:
            x = x + residual
        if passed["read"]:
            x = torch.cat([passed["read"][i] for i in self.spec.reads], -1)
        if self._leave is not None:
            x = self._leave(params["leave"], x)
        keep = patches.keep
        if self._resampler is not None:
            x = self._resampler(params["resampler"], x, patches, batch)
            return self._arrange(params, x, patches).to(torch.float32)
        if self._pool is not None:
            x, keep = self._pool(params["pool"], x, batch), batch.token_seq.index_select(0, keep)
        x = self._arrange(params, self._projector(params.get("projector", {}), x, keep), patches)
        return torch.cat([x, *passed["tapped"]], -1).to(torch.float32)

    def _arrange(self, params: Params, x: Array, patches: Patches) -> Array:
        """The vectors in the order of placeholders, and those that stand between rows among them."""
        if self.spec.newline:
            x = torch.cat([x, self._newlines(params["newline"], x.shape[1])])
        near = patches.mix.shape[1]
        if near:
            x = x.index_select(0, patches.mix.reshape(-1))
        if near > 1:
            x = (x.unflatten(0, (-1, near)) * patches.part.to(x.dtype).unsqueeze(-1)).sum(1)
        return x if self.spec.scale == 1.0 else x * self.spec.scale

    def _newlines(self, line: Array, width: int) -> Array:
        """[N, width]. Vectors for several layers of the language model have the same one for each, but not for zeros."""
        if not isinstance(self.spec.resampler, spec.WindowQFormersSpec):
            return line.view(-1, width)
        blank = [torch.zeros_like(line)] if self.spec.resampler.blank else []
        return torch.cat([*blank, *[line] * len(self.spec.resampler.readers)]).unsqueeze(0)

    def _embed_patches(self, params: Params, patches: Patches) -> Array:
        table = None
        value = patches.value.to(self._dtype(params))
        if self._video is not None and value.shape[1] == self.spec.video[1]:
            x = self._video(params["video"], value, None)
        else:
            x = self._patch(params["patch"], value, None)
        if self._embed_norm is not None:
            x = self._embed_norm(params["embedded"], x)
        if self.spec.whole:
            x = torch.where(patches.place[:, :1] == 0, params["whole"].reshape(-1), x)
        if self._places is not None:
            near = patches.place.shape[1]
            table = self._places(patches.place.reshape(-1), params["places"]["weight"])
            if near > 1:
                table = (table.unflatten(0, (-1, near)) * patches.share.to(x.dtype).unsqueeze(-1)).sum(1)
            x = x + table
        return x if self._enter is None else self._enter(params["enter"], x)

    def _dtype(self, params: Params) -> Any:
        return getattr(torch, self.attention[1].dtype)


def windows(batch: StepBatch) -> StepBatch:
    """The same patches, each window a sequence, as `media.patches.windows` makes it on the host."""
    patches = batch.get(Patches)
    assert patches is not None
    size = patches.window
    last = (size.cumsum(0) - 1).to(torch.int32)
    rows = torch.ones_like(batch.positions).cumsum(0) - 1
    within = rows - (last + 1 - size).index_select(0, patches.window_seq)
    return replace(
        batch, token_seq=patches.window_seq, query=size, last_row=last, positions=within.to(torch.int32),
        slots=torch.ones_like(size), context=torch.zeros_like(size),
    )  # fmt: skip


def shrunk(batch: StepBatch, group: int) -> StepBatch:
    """The same images after so many neighbours became one, as `media.patches.shrunk` makes it on the host."""
    query, token_seq = batch.query // group, batch.token_seq[::group]
    last = (query.cumsum(0) - 1).to(torch.int32)
    rows = torch.ones_like(token_seq).cumsum(0) - 1
    within = rows - (last + 1 - query).index_select(0, token_seq)
    return replace(
        batch, tokens=batch.tokens[::group], token_seq=token_seq, query=query, last_row=last, positions=within.to(torch.int32)
    )
