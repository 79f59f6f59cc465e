"""Rotary position tables (Su et al. 2021, https://arxiv.org/abs/2104.09864) with the scalings checkpoints ask for.

A table row holds cos, then sin, of position x frequency. Which frequencies: `rope_type` of the configuration, as named by
transformers' documentation of rope parameters. Tables are computed once. Other engines choose "dynamic" and "longrope"
frequencies by the length of the batch. Here the longest sequence served decides: a cached key must remain valid while its
sequence grows, and a sequence's text must not depend on its neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from thalweg.checkpoint.config import flag, integer, real
from thalweg.errors import CheckpointError
from thalweg.hal.ops.pointwise import cosine, sine
from thalweg.models import spec as declared
from thalweg.models.spec import rope_type
from thalweg.models.weights import ParamSpec, Weight

_WHERE = "rope_parameters"


def cos_sin_table(rope: Mapping[str, Any], head_dim: int, trained: int, length: int) -> torch.Tensor:
    """f32[length, head_dim]: cos of the head_dim / 2 frequencies, then sin.

    rope: as checkpoint.config.rope_parameters gives it. trained: max_position_embeddings. length: positions served."""
    inv_freq, scale = _SCALINGS[rope_type(rope, head_dim)](rope, head_dim, trained, length)
    angle = torch.arange(length, dtype=torch.float32)[:, None] * inv_freq
    return torch.cat([angle.cos() * scale, angle.sin() * scale], dim=-1)


class ScaledFrequencies:
    """Rotary tables of a step where each frequency has a learned factor: computed for its tokens, as no table of all positions
    is known before the weights are."""

    def __init__(self, rope: declared.Rope, weights: Mapping[str, Any], length: int) -> None:
        rates, self._scale = _SCALINGS[rope_type(rope.parameters, rope.dim)](rope.parameters, rope.dim, rope.trained, length)
        self.specs: dict[str, Any] = {
            "log": ParamSpec(weights["log"], "float32"),
            "rates": ParamSpec(Weight(()), "float32", make=lambda: rates[None]),
        }

    def __call__(self, p: Mapping[str, Any], positions: torch.Tensor) -> tuple[dict[int, torch.Tensor], torch.Tensor]:
        """Of positions i32[T]: tables f32[T, dim] as `Flow.tables` has them, and the row of each token in them."""
        angle = positions.to(torch.float32)[:, None] * (p["rates"] * torch.exp(p["log"]))
        table = torch.cat([cosine(angle) * self._scale, sine(angle) * self._scale], dim=-1)
        return {0: table}, torch.arange(positions.shape[0], dtype=positions.dtype, device=positions.device)


Frequencies = tuple[torch.Tensor, float]
"""f32[head_dim / 2] in radians per position, and the factor cos and sin are multiplied by."""


def _powers(base: float, dim: int) -> torch.Tensor:
    return base ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)


def _default(rope: Mapping[str, Any], dim: int, trained: int, length: int) -> Frequencies:
    return 1.0 / _powers(rope["rope_theta"], dim), 1.0


def _linear(rope: Mapping[str, Any], dim: int, trained: int, length: int) -> Frequencies:
    return 1.0 / _powers(rope["rope_theta"], dim) / _factor(rope), 1.0


def _dynamic(rope: Mapping[str, Any], dim: int, trained: int, length: int) -> Frequencies:
    """NTK-aware: the base grows with the served length beyond the trained one; unchanged where it is not longer."""
    if dim <= 2:
        raise CheckpointError("config.json: rope_type dynamic needs a head_dim above 2")
    factor = _factor(rope)
    stretch = factor * max(length, trained) / trained - (factor - 1)
    return 1.0 / _powers(rope["rope_theta"] * stretch ** (dim / (dim - 2)), dim), 1.0


def _llama3(rope: Mapping[str, Any], dim: int, trained: int, length: int) -> Frequencies:
    """Long wavelengths are divided by the factor, short ones kept, those between interpolated (Llama 3.1)."""
    factor, original = _factor(rope), integer(rope, "original_max_position_embeddings", where=_WHERE)
    low, high = (real(rope, f"{k}_freq_factor", 1e-6, 1e6, where=_WHERE) for k in ("low", "high"))
    if high < low:
        raise CheckpointError(f"config.json: {_WHERE}: high_freq_factor ({high}) must not be below low_freq_factor ({low})")
    inv_freq = 1.0 / _powers(rope["rope_theta"], dim)
    wavelength = 2 * math.pi / inv_freq
    smooth = (original / wavelength - low) / max(high - low, 1e-9)  # Llama 4's are one: nothing lies between
    between = (1 - smooth) * inv_freq / factor + smooth * inv_freq
    scaled = torch.where(wavelength > original / low, inv_freq / factor, between)
    return torch.where(wavelength < original / high, inv_freq, scaled), 1.0


def _yarn(rope: Mapping[str, Any], dim: int, trained: int, length: int) -> Frequencies:
    """YaRN (Peng et al. 2023, https://arxiv.org/abs/2309.00071): interpolate slow dimensions, keep fast ones, ramp between."""
    original = integer(rope, "original_max_position_embeddings", where=_WHERE, default=trained)
    factor = real(rope, "factor", 1e-6, 1e6, where=_WHERE, default=trained / original)
    base = rope["rope_theta"]

    def turning(rotations: float) -> float:
        """The dimension with a frequency of this many full turns over the original length."""
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(base))

    fast, slow = (real(rope, k, 1e-6, 1e6, where=_WHERE, default=v) for k, v in (("beta_fast", 32.0), ("beta_slow", 1.0)))
    first, last = turning(fast), turning(slow)
    if flag(rope, "truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, dim - 1)
    if first == last:
        last += 0.001  # a ramp of no width would divide by zero
    keep = 1 - ((torch.arange(dim // 2, dtype=torch.float32) - first) / (last - first)).clamp(0, 1)
    powers = _powers(base, dim)
    return 1.0 / (factor * powers) * (1 - keep) + 1.0 / powers * keep, _yarn_scale(rope, factor)


def _yarn_scale(rope: Mapping[str, Any], factor: float) -> float:
    """cos and sin are scaled by `attention_factor`, or as the paper's section 3.4 derives it from the factor."""
    if rope.get("attention_factor") is not None:
        return real(rope, "attention_factor", 0, 1e6, where=_WHERE)

    def mscale(m: float) -> float:
        return 0.1 * m * math.log(factor) + 1.0 if factor > 1 else 1.0

    m, m_all = (real(rope, k, 0, 1e6, where=_WHERE, default=0.0) for k in ("mscale", "mscale_all_dim"))
    return mscale(m) / mscale(m_all) if m and m_all else mscale(1.0)


def _longrope(rope: Mapping[str, Any], dim: int, trained: int, length: int) -> Frequencies:
    """LongRoPE (Ding et al. 2024, https://arxiv.org/abs/2402.13753): a factor per dimension, one list for engines that
    serve no more than the original length, the other for longer ones."""
    original = integer(rope, "original_max_position_embeddings", where=_WHERE, default=trained)
    factor = real(rope, "factor", 1e-6, 1e6, where=_WHERE, default=trained / original)
    length_class = "long" if length > original else "short"
    key = f"{length_class}_factor"
    factors = rope.get(key)
    if not isinstance(factors, list) or len(factors) != dim // 2:
        raise CheckpointError(f"config.json: {_WHERE}: {key}: must be a list of {dim // 2} numbers")
    checked = [real({key: f}, key, 1e-6, 1e6, where=_WHERE) for f in factors]
    scale = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    scale = real(rope, "attention_factor", 0, 1e6, where=_WHERE, default=scale)
    scale = real(rope, f"{length_class}_mscale", 0, 1e6, where=_WHERE, default=scale)  # Phi-3.5-MoE
    return 1.0 / (torch.tensor(checked) * _powers(rope["rope_theta"], dim)), scale


def _proportional(rope: Mapping[str, Any], dim: int, trained: int, length: int) -> Frequencies:
    """Pairs are half a head apart, as in full rotation, but only a share of them, the fastest, is rotated (Gemma 4)."""
    pairs = int(real(rope, "partial_rotary_factor", 0, 1, where=_WHERE, default=1.0) * dim // 2)
    inv_freq = torch.zeros(dim // 2)
    inv_freq[:pairs] = 1.0 / _powers(rope["rope_theta"], dim)[:pairs]
    return inv_freq / real(rope, "factor", 1e-6, 1e6, where=_WHERE, default=1.0), 1.0


def _factor(rope: Mapping[str, Any]) -> float:
    return real(rope, "factor", 1e-6, 1e6, where=_WHERE)


_SCALINGS: Mapping[str, Callable[[Mapping[str, Any], int, int, int], Frequencies]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "proportional": _proportional,
}
