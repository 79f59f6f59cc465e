"""Parts of definitions of decoders, in float64: of one sequence, [T, ...]."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor


def draw(shapes: Mapping[str, tuple[int, ...]], seed: int) -> dict[str, Tensor]:
    """Random tensors whose logits differ by a few units: norms about 1, matrices scaled by their inputs."""
    g, out = torch.Generator().manual_seed(seed), {}
    for name, shape in shapes.items():
        drawn = torch.empty(shape).normal_(0, 1, generator=g)
        if "norm" in name or "_weight" in name or "ln." in name:
            out[name] = 1 + 0.2 * drawn
        elif "embed" in name:
            out[name] = 0.4 * drawn
        elif name.endswith("A_log"):
            out[name] = torch.empty(shape).uniform_(-3, 0.5, generator=g)
        elif len(shape) == 1:
            out[name] = 0.3 * drawn
        else:
            out[name] = drawn * 1.2 / shape[-1] ** 0.5
    return out


def write(path: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    save_file(dict(tensors), path / "model.safetensors", {"format": "pt"})
    return path


class Parts:
    """Tensors by name, in float64, and what layers compute of them."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.t = {name: t.to(torch.float64) for name, t in tensors.items()}

    def linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self.t[f"{name}.weight"], self.t.get(f"{name}.bias"))

    def rms(self, x: Tensor, weight: Tensor | float = 1.0, eps: float = 1e-6) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight

    def layer_norm(self, x: Tensor, name: str, eps: float = 1e-5) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], self.t[f"{name}.weight"], self.t.get(f"{name}.bias"), eps)

    def swiglu(self, x: Tensor, up: str, down: str) -> Tensor:
        """up: the matrix of the gate, then of what it multiplies."""
        gate, value = self.linear(x, up).chunk(2, -1)
        return self.linear(F.silu(gate) * value, down)


def turn(x: Tensor, base: float) -> Tensor:
    """Rotary positions of x [heads, T, n], halves together."""
    n = x.shape[-1]
    by = base ** (-torch.arange(0, n, 2, dtype=x.dtype) / n)
    angle = torch.arange(x.shape[1], dtype=x.dtype)[:, None] * by
    a, b = x.chunk(2, -1)
    return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), -1)


def attend(q: Tensor, k: Tensor, v: Tensor, window: int = 0, scale: float = 0.0, bias: Tensor | float = 0.0) -> Tensor:
    """Causal attention of [heads, T, n] to heads of keys that groups share -> [T, heads, n of v]."""
    k, v = (part.repeat_interleave(len(q) // len(k), 0) for part in (k, v))
    apart = torch.arange(q.shape[1])[:, None] - torch.arange(q.shape[1])
    hidden = (apart < 0) | (apart >= (window or q.shape[1]))
    scores = q @ k.mT * (scale or q.shape[-1] ** -0.5) + bias
    return (torch.softmax(scores.masked_fill(hidden, -torch.inf), -1) @ v).transpose(0, 1)


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A causal convolution of each channel: x [T, channels], weight [channels, 1, taps]."""
    taps = weight.shape[-1]
    return F.conv1d(F.pad(x.T, (taps - 1, 0)), weight, bias, groups=len(weight)).T
