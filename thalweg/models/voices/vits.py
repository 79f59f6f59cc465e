"""VITS: characters in, samples out. Durations depend on the data, so shapes are those of each utterance."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from thalweg.hal.noise import gaussians
from thalweg.hal.ops.activation import activate
from thalweg.hal.parts.utterance import Utterance
from thalweg.hal.step import Array, Params, State, Step, StepBatch, StepResult
from thalweg.models import spec
from thalweg.models.voices.convolutions import convolve, float32_specs, normalise
from thalweg.models.voices.vocoder import run_vocoder

Parts = Mapping[Any, Any]
DURATIONS, FRAMES = 0, 1
"""Streams of a seed's noise."""
EPS = 1e-5
"""Of norms between dilated convolutions."""
LEAST = 1e-3
"""Least width, height and slope of a spline's bins."""


class VitsNetwork:
    """Holds no tensors: parameters are passed. It computes in float32, as durations are rounded."""

    attention = None
    depth = 1

    def __init__(self, s: spec.VitsSpec) -> None:
        self.spec = s
        self.specs = float32_specs(s.weights())

    def part(self, first: int, last: int, carried: dict[str, Any]) -> Step:
        """As of `VisionEncoder`: `StepResult.pooled` is f32[frames, samples of a frame]. Without a row, the utterance would
        have more than `most_frames`, or its durations are not numbers."""

        def step(params: Params, state: State, batch: StepBatch) -> tuple[State, StepResult]:
            utterance = batch.get(Utterance)
            assert utterance is not None
            zeros = torch.zeros_like(batch.slots)
            return state, StepResult(zeros.unsqueeze(1), zeros, pooled=self._speak(params, utterance))

        return step

    def _speak(self, p: Params, utterance: Utterance) -> Array:
        s = self.spec
        seed = utterance.seed.cpu().numpy()
        voice = p["speakers"].index_select(0, utterance.voice).T if s.condition else None
        x = functional.embedding(utterance.units[:, 0].long(), p["table"]) * math.sqrt(s.hidden)
        for i in range(s.layers):
            x = self._layer(p["layers"][i], x)
        x = x.T
        mean, deviation = convolve(p["project"], x).chunk(2)
        logs = self._draw(p["durations"], x, voice, seed) if s.stochastic else self._predict(p["durations"], x, voice)
        counts = torch.ceil(torch.exp(logs[0]) * (1.0 / (s.pace * float(utterance.speed))))
        total = float(counts.sum())
        if not total <= s.most_frames:
            return x.new_zeros(0, s.width)
        counts = counts.long()
        mean, deviation = (each.repeat_interleave(counts, 1) for each in (mean, deviation))
        if not total:
            mean = deviation = x.new_zeros(s.flow, 1)
        z = mean + noise_like(mean, seed, FRAMES) * torch.exp(deviation) * s.noise
        for i in reversed(range(s.flows)):
            z = self._uncouple(p["flows"][i], z.flip(0), voice)
        return run_vocoder(p["vocoder"], s.vocoder, z, voice).view(-1, s.width)

    def _layer(self, p: Parts, x: Array) -> Array:
        """x [T, hidden]."""
        x = normalise(p["norm1"], x + self._attend(p, x), self.spec.eps)
        y = activate(self._spread(p["up"], x.T), self.spec.act)
        return normalise(p["norm2"], x + self._spread(p["down"], y).T, self.spec.eps)

    def _spread(self, p: Parts, x: Array) -> Array:
        taps = self.spec.inner_kernel - 1
        return convolve(p, functional.pad(x, (taps // 2, taps - taps // 2)))

    def _attend(self, p: Parts, x: Array) -> Array:
        n, heads, w = len(x), self.spec.heads, self.spec.window
        q, k, v = (functional.linear(x, p[i]["matrix"], p[i].get("bias")).view(n, heads, -1).transpose(0, 1) for i in "qkv")
        q = q * q.shape[-1] ** -0.5
        place = torch.arange(n, device=x.device)
        apart = place - place[:, None] + w
        known = (apart >= 0) & (apart <= 2 * w)
        near = (q @ p["near_k"][0].T).gather(-1, apart.clamp(0, 2 * w).expand(heads, n, n))
        chance = (q @ k.mT + torch.where(known, near, 0.0)).softmax(-1)
        around = place[:, None] + torch.arange(2 * w + 1, device=x.device)
        close = functional.pad(chance, (w, w)).gather(-1, around.expand(heads, n, 2 * w + 1))
        y = (chance @ v + close @ p["near_v"][0]).transpose(0, 1).reshape(n, -1)
        return functional.linear(y, p["out"]["matrix"], p["out"].get("bias"))

    def _predict(self, p: Parts, x: Array, voice: Array | None) -> Array:
        """x [hidden, T] -> logarithms of durations [1, T]."""
        if voice is not None:
            x = x + convolve(p["condition"], voice)
        pad = self.spec.duration_kernel // 2
        for conv, norm in (("conv1", "norm1"), ("conv2", "norm2")):
            x = normalise(p[norm], convolve(p[conv], x, padding=pad).relu().T, self.spec.eps).T
        return convolve(p["project"], x)

    def _draw(self, p: Parts, x: Array, voice: Array | None, seed: np.ndarray) -> Array:
        """The same, drawn: the inverse flow of noise."""
        s = self.spec
        x = convolve(p["enter"], x)
        if voice is not None:
            x = x + convolve(p["condition"], voice)
        x = convolve(p["project"], self._dilate(p["dilated"], x))
        z = noise_like(x.new_empty(2, x.shape[1]), seed, DURATIONS) * s.duration_noise
        for i in range(s.duration_flows, 1, -1):
            first, second = z.flip(0).chunk(2)
            flow = p["flows"][i]
            result = convolve(flow["project"], self._dilate(flow["dilated"], convolve(flow["enter"], first) + x))
            z = torch.cat([first, self._unspline(result.T, second[0])[None]])
        z = (z.flip(0) - p["translate"]) * torch.exp(-p["log_scale"])
        return z[:1]

    def _dilate(self, p: Parts, x: Array) -> Array:
        taps = self.spec.duration_kernel
        for i in range(self.spec.duration_layers):
            step = taps**i
            y = convolve(p[i]["dilated"], x, padding=(taps * step - step) // 2, dilation=step, groups=x.shape[0])
            y = functional.gelu(normalise(p[i]["norm1"], y.T, EPS).T)
            y = functional.gelu(normalise(p[i]["norm2"], convolve(p[i]["pointwise"], y).T, EPS).T)
            x = x + y
        return x

    def _unspline(self, result: Array, y: Array) -> Array:
        """The inverse of a monotonic rational-quadratic spline (Durkan et al. 2019, https://arxiv.org/abs/1906.04032) with
        these unnormalised bins [T, 3 * bins - 1], at y [T]. Beyond `duration_bound` it is the identity."""
        s, bound, n = self.spec, self.spec.duration_bound, self.spec.duration_bins
        widths, heights, slopes = result.split([n, n, n - 1], -1)
        (x_at, widths), (y_at, heights) = (_edges(each / math.sqrt(s.hidden), bound) for each in (widths, heights))
        edge = math.log(math.exp(1 - LEAST) - 1)
        slopes = LEAST + functional.softplus(functional.pad(slopes, (1, 1), value=edge))
        inside = (y >= -bound) & (y <= bound)
        at = (y.clamp(-bound, bound)[:, None] >= _open_end(y_at)).sum(-1, keepdim=True) - 1
        low, width, base, height = (each.gather(-1, at)[:, 0] for each in (x_at, widths, y_at, heights))
        d0, d1 = slopes.gather(-1, at)[:, 0], slopes.gather(-1, at + 1)[:, 0]
        ratio, over = (heights / widths).gather(-1, at)[:, 0], y.clamp(-bound, bound) - base
        bend = over * (d0 + d1 - 2 * ratio)
        a, b, c = height * (ratio - d0) + bend, height * d0 - bend, -ratio * over
        root = 2 * c / (-b - (b * b - 4 * a * c).clamp(min=0).sqrt())
        return torch.where(inside, root * width + low, y)

    def _uncouple(self, p: Parts, z: Array, voice: Array | None) -> Array:
        """The inverse of a coupling layer: z [flow, frames]."""
        s, n = self.spec, self.spec.hidden
        first, second = z.chunk(2)
        x, out = convolve(p["enter"], first), None
        offsets = None if voice is None else convolve(p["condition"], voice)
        for i in range(s.flow_layers):
            step, layer = s.flow_dilation**i, p["layers"][i]
            y = convolve(layer["enter"], x, padding=(s.flow_kernel * step - step) // 2, dilation=step)
            if offsets is not None:
                y = y + offsets[2 * n * i : 2 * n * (i + 1)]
            y = convolve(layer["leave"], torch.tanh(y[:n]) * torch.sigmoid(y[n:]))
            if i + 1 < s.flow_layers:
                x, y = x + y[:n], y[n:]
            out = y if out is None else out + y
        return torch.cat([first, second - convolve(p["leave"], out)])


def noise_like(x: Array, seed: np.ndarray, stream: int) -> Array:
    """Standard normal variables of this shape. The same on every device."""
    drawn: Array = torch.from_numpy(gaussians(seed, stream, x.numel()).reshape(x.shape)).to(x.device)
    return drawn


def _edges(x: Array, bound: float) -> tuple[Array, Array]:
    """Unnormalised sizes [T, bins] of bins between -bound and bound -> (their edges [T, bins + 1], their sizes)."""
    sizes = LEAST + (1 - LEAST * x.shape[-1]) * x.softmax(-1)
    at = functional.pad(sizes.cumsum(-1), (1, 0)) * (2 * bound) - bound
    at[:, 0], at[:, -1] = -bound, bound
    return at, at[:, 1:] - at[:, :-1]


def _open_end(at: Array) -> Array:
    """The same edges, with the last beyond the bound, so that the bound is in the last bin."""
    beyond = at.clone()
    beyond[:, -1] += 1e-6
    return beyond
