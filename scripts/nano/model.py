"""A Qwen3 decoder in plain torch for training: fused projections, no cache, no serving. Exported under the names every
other software knows (`hf_state`)."""

from __future__ import annotations

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


class Attention(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.s = s
        self.split = [s.heads * s.head_dim, s.kv_heads * s.head_dim, s.kv_heads * s.head_dim]
        self.qkv = nn.Linear(s.hidden, sum(self.split), bias=False)
        self.out = nn.Linear(s.heads * s.head_dim, s.hidden, bias=False)
        self.q_norm = nn.Parameter(torch.ones(s.head_dim))
        self.k_norm = nn.Parameter(torch.ones(s.head_dim))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        b, t, _ = x.shape
        s = self.s
        q, k, v = self.qkv(x).split(self.split, dim=-1)
        q = _rotate(_norm(q.view(b, t, s.heads, s.head_dim), self.q_norm, s.eps), cos, sin).transpose(1, 2)
        k = _rotate(_norm(k.view(b, t, s.kv_heads, s.head_dim), self.k_norm, s.eps), cos, sin).transpose(1, 2)
        v = v.view(b, t, s.kv_heads, s.head_dim).transpose(1, 2)
        repeat = s.heads // s.kv_heads
        k, v = (z.repeat_interleave(repeat, dim=1) for z in (k, v))
        y = F.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, -1))


class Block(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.eps = s.eps
        self.norm1 = nn.Parameter(torch.ones(s.hidden))
        self.attention = Attention(s)
        self.norm2 = nn.Parameter(torch.ones(s.hidden))
        self.up = nn.Linear(s.hidden, 2 * s.inner, bias=False)
        self.down = nn.Linear(s.inner, s.hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(_norm(x, self.norm1, self.eps), cos, sin)
        gate, up = self.up(_norm(x, self.norm2, self.eps)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Nano(nn.Module):
    """Token ids [rows, length] -> hidden states; `logits` of chosen ones. The embedding is also the output layer."""

    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.s = s
        self.embed = nn.Embedding(s.vocab, s.hidden)
        self.blocks = nn.ModuleList(Block(s) for _ in range(s.layers))
        self.norm = nn.Parameter(torch.ones(s.hidden))
        angle = torch.arange(s.positions)[:, None] / s.theta ** (torch.arange(0, s.head_dim, 2) / s.head_dim)
        self.register_buffer("cos", angle.cos()[:, None], persistent=False)
        self.register_buffer("sin", angle.sin()[:, None], persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        cos, sin = self.cos[: ids.shape[1]], self.sin[: ids.shape[1]]
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, cos, sin)
        return _norm(x, self.norm, self.s.eps)

    def logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.embed.weight)


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, weight.shape, weight.to(x.dtype), eps)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding, the two halves of a head as pairs. x [b, t, heads, d]; cos, sin [t, 1, d/2]."""
    a, b = x.chunk(2, dim=-1)
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
