"""HiFi-GAN: latent frames in, samples out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional

from thalweg.hal.step import Array
from thalweg.models import spec
from thalweg.models.voices.convolutions import convolve

LAST_SLOPE = 0.01
"""Of leaky ReLU before the last convolution."""


def run_vocoder(p: Mapping[str, Any], s: spec.VocoderSpec, x: Array, voice: Array | None) -> Array:
    """x [inputs, frames] -> f32[frames * hop]. voice: [n, 1], a speaker's vector."""
    x = convolve(p["enter"], x, padding=3)
    if voice is not None:
        x = x + convolve(p["condition"], voice)
    many = len(s.block_kernels)
    for i, (rate, kernel) in enumerate(zip(s.rates, s.kernels, strict=True)):
        x = functional.leaky_relu(x, s.slope)
        up = p["up"][i]
        x = functional.conv_transpose1d(x[None], up["kernel"], up["bias"], stride=rate, padding=(kernel - rate) // 2)[0]
        outs = [_run_block(p["blocks"][i * many + j], s, j, x) for j in range(many)]
        x = torch.stack(outs).sum(0) / many
    return torch.tanh(convolve(p["leave"], functional.leaky_relu(x, LAST_SLOPE), padding=3))[0]


def _run_block(p: Mapping[int, Any], s: spec.VocoderSpec, j: int, x: Array) -> Array:
    taps = s.block_kernels[j] - 1
    for k, step in enumerate(s.dilations[j]):
        y = convolve(p[k]["first"], functional.leaky_relu(x, s.slope), padding=taps * step // 2, dilation=step)
        x = x + convolve(p[k]["second"], functional.leaky_relu(y, s.slope), padding=taps // 2)
    return x
