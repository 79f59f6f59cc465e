"""The audio encoder of chat models: a step with the convolutions' outputs, over a spectrum, as tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional

from thalweg.hal.attention import AttentionBackend, AttnSpec
from thalweg.hal.parts.frames import Frames
from thalweg.hal.step import Array, Params, State, Step, StepBatch, StepResult
from thalweg.models import spec
from thalweg.models.context import Context
from thalweg.models.flow import Flow, MixerRef
from thalweg.models.layers.linear import Linear
from thalweg.models.vision.activation import activate_clip
from thalweg.models.vision.tower import Projector
from thalweg.models.weights import ParamSpec


class AudioEncoder:
    """Holds no tensors: parameters are passed."""

    def __init__(self, ctx: Context, s: spec.AudioSpec, weights: Mapping[str, Any], block: Callable[..., Any]) -> None:
        """block: builder of a layer."""
        ctx = ctx.of_encoder()
        self.spec, self._dtype = s, getattr(torch, ctx.dtype)
        self._out = None if s.out is None else Linear(ctx, weights["out"])
        self._blocks = [block(ctx, layer, weights["layers"][i], [MixerRef(i, 0, 0)]) for i, layer in enumerate(s.layers)]
        self._projector = Projector(ctx, s.projector, weights["projector"])
        self.specs: dict[str, Any] = {
            "convs": {i: {k: ParamSpec(w, ctx.dtype) for k, w in part.items()} for i, part in weights["convs"].items()},
            "layers": {i: b.specs for i, b in enumerate(self._blocks)},
            "projector": self._projector.specs,
        }
        if self._out is not None:
            self.specs["out"] = self._out.specs
        if s.places:
            self.specs["places"] = ParamSpec(weights["places"], ctx.dtype)

    @property
    def attention(self) -> tuple[AttentionBackend, AttnSpec]:
        """Of its layers, which are alike."""
        first = self._blocks[0].mixers[0]
        return first.backend, first.spec

    @property
    def depth(self) -> int:
        """As of `VisionEncoder`."""
        return len(self._blocks)

    def part(self, first: int, last: int, carried: dict[str, Any]) -> Step:
        """As of `VisionEncoder`: `StepResult.pooled` is f32[N, hidden of the language model]."""

        def step(params: Params, state: State, batch: StepBatch) -> tuple[State, StepResult]:
            frames = batch.get(Frames)
            assert frames is not None
            x, residual = (carried["x"], carried["residual"]) if first else (self._enter(params, frames), None)
            carried.clear()
            rows = torch.arange(len(x), dtype=torch.int32, device=x.device)
            flow = Flow(batch, [x.new_zeros(0)] * len(self._blocks), {0: frames.turn}, rows=rows)
            for i in range(first, last):
                x, residual = self._blocks[i](params["layers"][i], x, residual, flow)
            out = None
            if last < self.depth:
                carried.update(x=x, residual=residual)
            else:
                x = x if residual is None else x + residual
                out = self._projector(params["projector"], x, frames.keep, frames.spin).to(torch.float32)
            zeros = torch.zeros_like(batch.slots)
            return state, StepResult(zeros.unsqueeze(1), zeros, pooled=out)

        return step

    def _enter(self, params: Params, frames: Frames) -> Array:
        """[T, hidden]."""
        x = self._convolve(params, frames).index_select(0, frames.row)
        if self.spec.places:
            return x + params["places"].index_select(0, frames.place)
        return x + frames.sines.to(x.dtype) if frames.sines.shape[1] else x

    def _convolve(self, params: Params, frames: Frames) -> Array:
        """[chunks * places, hidden]. Chunk by chunk, so that a step's memory does not grow with the clip."""
        result = [self._chunk(params, mel, real) for mel, real in zip(frames.mel.unbind(0), frames.real.unbind(0), strict=True)]
        return torch.cat(result)

    def _chunk(self, params: Params, mel: Array, real: Array) -> Array:
        """mel [bins, frames] -> [places, hidden]."""
        x = mel.to(self._dtype)[None]
        for i, conv in enumerate(self.spec.convs):
            p = params["convs"][i]
            if conv.flat:
                x = functional.conv2d(x[None] if i == 0 else x, p["weight"], p["bias"], stride=conv.stride, padding=1)
            else:
                x = functional.conv1d(x, p["weight"], p["bias"], stride=conv.stride, padding=1)
            x = activate_clip(x, self.spec.act)
            if i == 0 and self.spec.masked:
                x = x * real.to(x.dtype)
        x = x[0].flatten(0, -2).T.contiguous()
        return x if self._out is None else self._out(params["out"], x, None)
