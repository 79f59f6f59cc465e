"""Rounding of cached rows in small groups, as models that were trained with it need (DeepSeek-AI 2026, DeepSeek-V4.1)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from thalweg.hal.op import Sample, op
from thalweg.hal.ops.quantise import to_e2m1

_LEAST = -126
"""The exponent of the smallest normal float32."""
_POWERS = tuple(2.0**n for n in range(_LEAST, 128))


def _sample(form: str, group: int, width: int) -> Sample:
    def make(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        x = rng.normal(size=(6, width)) * 10.0 ** rng.integers(-4, 4, (6, 1))
        x[5] = 0
        return (x.astype(np.float16),)

    return Sample(f"{form}-{group}-of-{width}", make, {"form": form, "group": group})


@op(
    samples=[_sample("fp8", 32, 48), _sample("mxfp4", 32, 64), _sample("nvfp4", 16, 40)],
    tolerances={"float32": 0, "bfloat16": 0},
)
def round_groups(x: Tensor, *, form: str, group: int) -> Tensor:
    """x [..., D] -> the same, rounded and back: each `group` of values along D has a scale. A last group may be smaller.

    form: "fp8" has values of float8_e4m3fn, and scales of the power of two from largest / 448 on. "mxfp4" has 4-bit floats
    (e2m1), and scales of the power of two from largest / 6 on. "nvfp4" has these too, and scales of float8_e4m3fn, the nearest
    of largest / 6. Ties go to the even code."""
    width = x.shape[-1]
    parts = torch.nn.functional.pad(x.to(torch.float32), (0, -width % group))
    parts = parts.view(*x.shape[:-1], -1, group)
    largest = parts.abs().amax(-1, keepdim=True)
    if form == "nvfp4":
        scale = (largest.clamp(min=6 * 2.0**-9) / 6).to(torch.float8_e4m3fn).to(torch.float32)
    elif form == "mxfp4":
        scale = _next_power(largest.clamp(min=6 * 2.0**_LEAST) * (1 / 6))
    else:
        scale = _next_power(largest.clamp(min=1e-4) * (1 / 448))
    values = parts / scale
    if form == "fp8":
        values = values.clamp(-448, 448).to(torch.float8_e4m3fn).to(torch.float32)
    else:
        values = to_e2m1(values)
    result: Tensor = (values * scale).flatten(-2)[..., :width].to(x.dtype)
    return result


def _next_power(x: Tensor) -> Tensor:
    """The power of two that is x, or the next above: x f32, at least the smallest normal number."""
    fraction, exponent = torch.frexp(x)
    exponent = exponent - (fraction == 0.5).to(exponent.dtype)
    powers = torch.tensor(_POWERS, device=x.device)
    return powers[(exponent - _LEAST).clamp(min=0).long()]
