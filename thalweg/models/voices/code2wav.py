"""Qwen3-Omni's decoder of codes: frames in, samples out. Samples of a frame depend on the next frame and on earlier ones.
Those of the last frame are incomplete and left out, so the samples of a beginning are the beginning of the samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional

from thalweg.hal.ops.activation import activate
from thalweg.hal.ops.pointwise import gelu
from thalweg.hal.parts.utterance import Utterance
from thalweg.hal.step import Array, Params, State, Step, StepBatch, StepResult
from thalweg.models import spec
from thalweg.models.layers.rotary import cos_sin_table
from thalweg.models.spec.code2wav import DILATIONS
from thalweg.models.voices.convolutions import convolve, float32_specs, rotate

Parts = Mapping[Any, Any]
LEAST = 1e-9
"""Added to the divisor of the snake function."""
NORM_EPS = 1e-6
"""Of the layer norm of a ConvNeXt block."""


class Code2WavNetwork:
    """Holds no tensors: parameters are passed. It computes in float32."""

    attention = None
    depth = 1

    def __init__(self, s: spec.Code2WavSpec) -> None:
        self.spec = s
        self.specs = float32_specs(s.weights())

    def part(self, first: int, last: int, carried: dict[str, Any]) -> Step:
        """As of `VisionEncoder`: `StepResult.pooled` is f32[samples, 1]."""

        def step(params: Params, state: State, batch: StepBatch) -> tuple[State, StepResult]:
            settings = batch.get(Utterance)
            assert settings is not None
            zeros = torch.zeros_like(batch.slots)
            return state, StepResult(zeros.unsqueeze(1), zeros, pooled=self._decode(params, settings.units.long())[:, None])

        return step

    def _decode(self, p: Params, codes: Array) -> Array:
        """codes [frames, books] -> f32[samples], chunk by chunk. Codes beyond the codebook are its last."""
        s, result = self.spec, []
        rows = codes.clamp(0, s.codes - 1) + torch.arange(s.books, device=codes.device) * s.codes
        for at in range(0, len(codes), s.chunk):
            begin = max(0, at - s.before)
            x = functional.embedding(rows[begin : at + s.chunk], p["table"]).mean(1)
            result.append(self._convolve(p, self._transform(p, x).T)[(at - begin) * s.hop :])
        return torch.cat(result)

    def _transform(self, p: Parts, x: Array) -> Array:
        """x [T, hidden]."""
        s, n = self.spec, len(x)
        size = s.hidden // s.heads
        table = cos_sin_table(s.rope.parameters, size, s.rope.trained, n).to(x.device)
        place = torch.arange(n, device=x.device)
        apart = place[:, None] - place
        seen = (apart >= 0) & (apart < s.window)
        for i in range(s.layers):
            layer = p["layers"][i]
            y = _root_norm(x, layer["norm1"], s.eps)
            q, k, v = (
                functional.linear(y, layer[c]["matrix"], layer[c].get("bias")).view(n, -1, size).transpose(0, 1) for c in "qkv"
            )
            q, k = rotate(q, table), rotate(k, table)
            k, v = (each.repeat_interleave(s.heads // s.kv_heads, 0) for each in (k, v))
            y = functional.scaled_dot_product_attention(q, k, v, seen).transpose(0, 1).reshape(n, -1)
            x = x + layer["scale1"] * functional.linear(y, layer["out"]["matrix"], layer["out"].get("bias"))
            y = _root_norm(x, layer["norm2"], s.eps)
            y = activate(functional.linear(y, layer["gate"]["matrix"]), s.act) * functional.linear(y, layer["up"]["matrix"])
            x = x + layer["scale2"] * functional.linear(y, layer["down"]["matrix"])
        return _root_norm(x, p["norm"], s.eps)

    def _convolve(self, p: Params, x: Array) -> Array:
        """x [hidden, T] -> f32[samples]. Each upsampling of overlapping taps leaves some samples out at the end."""
        s = self.spec
        for i, ratio in enumerate(s.ratios):
            part = p["divide"][i]
            x = _mix(part, _upsample(part["up"], x, ratio))
        x = _causal(p["enter"], x)
        for i, rate in enumerate(s.rates):
            part = p["ups"][i]
            x = _upsample(part["up"], _snake(part["bend"], x), rate)
            for j, dilation in enumerate(DILATIONS):
                unit = part["units"][j]
                y = _causal(unit["first"], _snake(unit["bend1"], x), dilation)
                x = x + convolve(unit["second"], _snake(unit["bend2"], y))
        return _causal(p["leave"], _snake(p["bend"], x))[0].clamp(-1, 1)


def _mix(p: Parts, x: Array) -> Array:
    """A ConvNeXt block (Liu et al. 2022, https://arxiv.org/abs/2201.03545)."""
    y = convolve(p["mix"], functional.pad(x, (p["mix"]["kernel"].shape[-1] - 1, 0)), groups=len(x)).T
    y = functional.layer_norm(y, y.shape[-1:], p["norm"]["scale"], p["norm"]["shift"], NORM_EPS)
    y = gelu(functional.linear(y, p["enter"]["matrix"], p["enter"]["bias"]))
    return x + (p["scale"] * functional.linear(y, p["leave"]["matrix"], p["leave"]["bias"])).T


def _upsample(p: Parts, x: Array, rate: int) -> Array:
    """Without the samples that a transposed convolution computes of a part of its taps."""
    cut = p["kernel"].shape[-1] - rate
    y = functional.conv_transpose1d(x[None], p["kernel"], p["bias"], stride=rate)[0]
    return y[:, cut : y.shape[1] - cut]


def _snake(p: Parts, x: Array) -> Array:
    """x + sin(alpha x)^2 / beta (Ziyin et al. 2020, https://arxiv.org/abs/2006.08195), of the logarithms of both."""
    return x + torch.sin(x * p["alpha"].exp()[:, None]).square() / (p["beta"].exp() + LEAST)[:, None]


def _causal(p: Parts, x: Array, dilation: int = 1) -> Array:
    return convolve(p, functional.pad(x, ((p["kernel"].shape[-1] - 1) * dilation, 0)), dilation=dilation)


def _root_norm(x: Array, weight: Array, eps: float) -> Array:
    result: Array = weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps))
    return result
