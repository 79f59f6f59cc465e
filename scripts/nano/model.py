"""A Qwen3 decoder in plain torch for training: fused projections, no cache, no serving. Exported under the names every
other software knows (`hf_state`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a model. `head_dim` is even; `kv_heads` divides `heads`."""

    vocab: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    positions: int = 2048
    theta: float = 10000.0
    eps: float = 1e-6


Groups = Sequence[tuple[int, int]]
"""How many texts of which length follow each other."""


SHORT = 320
"""Up to this length attention is written out."""


class Attention(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.s = s
        self.split = [s.heads * s.head_dim, s.kv_heads * s.head_dim, s.kv_heads * s.head_dim]
        self.qkv = nn.Linear(s.hidden, sum(self.split), bias=False)
        self.out = nn.Linear(s.heads * s.head_dim, s.hidden, bias=False)
        self.q_norm = nn.Parameter(torch.ones(s.head_dim))
        self.k_norm = nn.Parameter(torch.ones(s.head_dim))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, groups: Groups) -> Tensor:
        s = self.s
        q, k, v = (z.view(len(x), -1, s.head_dim) for z in self.qkv(x).split(self.split, dim=-1))
        q = rotate(normalise(q, self.q_norm, s.eps), cos, sin).to(v.dtype)
        k = rotate(normalise(k, self.k_norm, s.eps), cos, sin).to(v.dtype)
        k, v = (z.repeat_interleave(s.heads // s.kv_heads, dim=1) for z in (k, v))
        sizes = [rows * length for rows, length in groups]
        parts = []
        for (rows, length), *qkv in zip(groups, q.split(sizes), k.split(sizes), v.split(sizes), strict=True):
            a, b, c = (z.view(rows, length, s.heads, s.head_dim).transpose(1, 2) for z in qkv)
            y = _attend(a, b, c)
            parts.append(y.transpose(1, 2).reshape(rows * length, -1))
        return self.out(torch.cat(parts))


class Block(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.eps = s.eps
        self.norm1 = nn.Parameter(torch.ones(s.hidden))
        self.attention = Attention(s)
        self.norm2 = nn.Parameter(torch.ones(s.hidden))
        self.up = nn.Linear(s.hidden, 2 * s.inner, bias=False)
        self.down = nn.Linear(s.inner, s.hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, groups: Groups) -> Tensor:
        x = x + self.attention(normalise(x, self.norm1, self.eps), cos, sin, groups)
        gate, up = self.up(normalise(x, self.norm2, self.eps)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Nano(nn.Module):
    """Token ids -> hidden states; `logits` of chosen ones. The embedding is also the output layer.

    Texts of several lengths go through at once: only attention asks which tokens belong together."""

    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.s = s
        self.embed = nn.Embedding(s.vocab, s.hidden)
        self.blocks = nn.ModuleList(Block(s) for _ in range(s.layers))
        self.norm = nn.Parameter(torch.ones(s.hidden))
        angle = torch.arange(s.positions)[:, None] / s.theta ** (torch.arange(0, s.head_dim, 2) / s.head_dim)
        self.register_buffer("cos", angle.cos()[:, None], persistent=False)
        self.register_buffer("sin", angle.sin()[:, None], persistent=False)

    def forward(self, ids: Tensor, groups: Groups) -> Tensor:
        """ids [tokens], text after text; groups in their order."""
        places = torch.cat([torch.arange(length, device=ids.device).repeat(rows) for rows, length in groups])
        cos, sin = self.cos[places], self.sin[places]
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, cos, sin, groups)
        return normalise(x, self.norm, self.s.eps)

    def logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.embed.weight)


def _attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention, [rows, heads, length, d] each. Written out for short texts: the fused kernel's backward pass takes
    three times as long for them on a CPU."""
    length = q.shape[2]
    if length > SHORT:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    later = torch.full((length, length), float("-inf"), device=q.device, dtype=q.dtype).triu(1)
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2) + later
    return scores.softmax(-1, dtype=torch.float32).to(v.dtype) @ v


def normalise(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, weight.shape, weight.to(x.dtype), eps)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding, the two halves of a head as pairs. x [tokens, heads, d]; cos, sin [tokens, 1, d/2]."""
    a, b = x.chunk(2, dim=-1)
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
