"""Row-wise ops between the matrix products. Where torch has nothing faster, the reference body is the kernel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from thalweg.hal import ops
from thalweg.hal.op import Kernel
from thalweg.hal.ops.activation import ACTIVATIONS, activate, glu
from thalweg.hal.step import SCRATCH
from thalweg.hal.weights import DENSE


def _embed(tokens: Tensor, weight: Tensor, *, group: int = 0, dtype: str = "") -> Tensor:
    return weight.index_select(0, tokens)


def _dense_table(spec: Mapping[str, Any]) -> str | None:
    w = spec.get("weight", DENSE)
    return None if w == DENSE else f"reads dense tables, not {w}"


def _rope(
    q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor, *, rotary_dim: int, interleaved: bool = False
) -> tuple[Tensor, Tensor]:
    """q and k rotated together: half the calls of the reference body, the same roundings."""
    if interleaved or rotary_dim != q.shape[-1]:
        out: tuple[Tensor, Tensor] = ops.rope.reference(
            q, k, positions, cos_sin, rotary_dim=rotary_dim, interleaved=interleaved
        )
        return out
    cos, sin = cos_sin.index_select(0, positions).to(q.dtype).unsqueeze(1).chunk(2, -1)
    both = torch.cat([q, k], 1)
    a, b = both.chunk(2, -1)
    turned = torch.cat([a * cos, b * cos], -1)
    turned += torch.cat([b * -sin, a * sin], -1)
    return turned[:, : q.shape[1]], turned[:, q.shape[1] :]


def _act_and_mul(x: Tensor, *, act: str = "silu") -> Tensor:
    gate, up = x.chunk(2, -1)
    return activate(gate, act).mul_(up) if act in ACTIVATIONS else glu(gate, up, act)


def _history_write(history: Tensor, slots: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
    """In place."""
    keep = (slots != SCRATCH) & (positions >= 0) & (positions < history.shape[1])
    row, column = torch.where(keep, slots, SCRATCH), torch.where(keep, positions, 0)
    return history.index_put_((row, column), tokens)


def _add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, *, eps: float, offset: float = 0.0) -> tuple[Tensor, Tensor]:
    total = x + residual
    return _rms_norm(total, weight, eps=eps, offset=offset), total


def _rms_norm(x: Tensor, weight: Tensor | None = None, *, eps: float, offset: float = 0.0) -> Tensor:
    wide = x.to(torch.float32)
    scale = (wide * wide).mean(-1, keepdim=True).add_(eps).rsqrt_()
    if weight is None:
        return (wide * scale).to(x.dtype)
    if offset:
        return (wide * scale).mul_(weight.to(torch.float32) + offset).to(x.dtype)
    return (wide * scale).to(x.dtype).mul_(weight)


def _layer_norm(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, *, eps: float, offset: float = 0.0
) -> Tensor:
    if offset:
        out: Tensor = ops.layer_norm.reference(x, weight, bias, eps=eps, offset=offset)
        return out
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


ELEMENTWISE = (
    Kernel("embed", "torch", _embed, _dense_table, batch_invariant=True),
    Kernel("rms_norm", "torch", _rms_norm, batch_invariant=True),
    Kernel("add_rms_norm", "torch", _add_rms_norm, batch_invariant=True),
    Kernel("layer_norm", "torch", _layer_norm, batch_invariant=True),
    Kernel("rope", "torch", _rope, batch_invariant=True),
    Kernel("act_and_mul", "torch", _act_and_mul, batch_invariant=True),
    Kernel("activation", "torch", ops.activation.reference, batch_invariant=True),
    Kernel("mean_pool", "torch", ops.mean_pool.reference, batch_invariant=True),
    Kernel("max_pool", "torch", ops.max_pool.reference, batch_invariant=True),
    Kernel("resolve_tokens", "torch", ops.resolve_tokens.reference, batch_invariant=True),
    Kernel("history_write", "in-place", _history_write, batch_invariant=True),
)
