"""The decoder of Mimi: codes of frames in, samples out. It is causal: samples of a frame depend on no later frame, so the
samples of a beginning are the beginning of the samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional

from thalweg.hal.ops.activation import activate
from thalweg.hal.parts.utterance import Utterance
from thalweg.hal.step import Array, Params, State, Step, StepBatch, StepResult
from thalweg.models import spec
from thalweg.models.layers.rotary import cos_sin_table
from thalweg.models.voices.convolutions import convolve, float32_specs, normalise, rotate

Parts = Mapping[Any, Any]
LEAST_USE = 1e-5
"""Of a code's count, by which its sum of vectors is divided."""


class MimiNetwork:
    """Holds no tensors: parameters are passed. It computes in float32."""

    attention = None
    depth = 1

    def __init__(self, s: spec.MimiSpec) -> None:
        self.spec = s
        self.specs = float32_specs(s.weights())

    def part(self, first: int, last: int, carried: dict[str, Any]) -> Step:
        """As of `VisionEncoder`: `StepResult.pooled` is f32[frames, samples of a frame]."""

        def step(params: Params, state: State, batch: StepBatch) -> tuple[State, StepResult]:
            utterance = batch.get(Utterance)
            assert utterance is not None
            zeros = torch.zeros_like(batch.slots)
            return state, StepResult(zeros.unsqueeze(1), zeros, pooled=self._decode(params, utterance.units.long()))

        return step

    def _decode(self, p: Params, codes: Array) -> Array:
        """codes [frames, books]. Codes beyond the codebook are its last."""
        s, codes = self.spec, codes.clamp(0, self.spec.codes - 1)
        x = self._dequantise(p["semantic"], codes[:, : s.semantic]) + self._dequantise(p["acoustic"], codes[:, s.semantic :])
        if s.stride > 1:
            divided = functional.conv_transpose1d(x[None], p["divide"]["kernel"], stride=s.stride, groups=s.groups)[0]
            x = divided[:, : -s.stride]
        return self._convolve(p, self._transform(p["layers"], x.T).T).view(-1, s.width)

    def _dequantise(self, p: Parts, codes: Array) -> Array:
        """[hidden, frames]."""
        result = torch.zeros((), device=codes.device)
        for i in range(codes.shape[1]):
            at, table = codes[:, i], p["tables"][i]
            result = result + table["sums"][at] / table["uses"][at].clamp(min=LEAST_USE)[:, None]
        return convolve(p["project"], result.T)

    def _transform(self, layers: Parts, x: Array) -> Array:
        """x [T, hidden]."""
        s, n = self.spec, len(x)
        size = s.hidden // s.heads
        table = cos_sin_table(s.rope.parameters, size, s.rope.trained, n).to(x.device)
        place = torch.arange(n, device=x.device)
        apart = place[:, None] - place
        seen = (apart >= 0) & (apart < s.window)
        for i in range(s.layers):
            p = layers[i]
            y = normalise(p["norm1"], x, s.eps)
            q, k, v = (functional.linear(y, p[c]["matrix"], p[c].get("bias")).view(n, -1, size).transpose(0, 1) for c in "qkv")
            q, k = rotate(q, table), rotate(k, table)
            k, v = (each.repeat_interleave(s.heads // s.kv_heads, 0) for each in (k, v))
            y = functional.scaled_dot_product_attention(q, k, v, seen).transpose(0, 1).reshape(n, -1)
            x = x + p["scale1"] * functional.linear(y, p["out"]["matrix"], p["out"].get("bias"))
            y = activate(functional.linear(normalise(p["norm2"], x, s.eps), p["up"]["matrix"]), s.act)
            x = x + p["scale2"] * functional.linear(y, p["down"]["matrix"])
        return x

    def _convolve(self, p: Params, x: Array) -> Array:
        """x [hidden, T] -> f32[T * product of ratios]."""
        s = self.spec
        x = _causal(p["enter"], x)
        for i, ratio in enumerate(s.ratios):
            up = p["ups"][i]["up"]
            x = functional.conv_transpose1d(functional.elu(x)[None], up["kernel"], up["bias"], stride=ratio)[0][:, :-ratio]
            for j in range(s.blocks):
                block = p["ups"][i]["blocks"][j]
                y = _causal(block["first"], functional.elu(x), s.growth**j)
                x = x + _causal(block["second"], functional.elu(y))
        return _causal(p["leave"], functional.elu(x))[0]


def _causal(p: Parts, x: Array, dilation: int = 1) -> Array:
    return convolve(p, functional.pad(x, ((p["kernel"].shape[-1] - 1) * dilation, 0)), dilation=dilation)
