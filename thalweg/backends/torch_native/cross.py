"""Cross attention with torch's fused attention, where a block lies: no gather. It runs a token at a time, so that one token
depends on no other."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from thalweg.hal.op import Kernel


def _write(held: Tensor, new: Tensor, table: Tensor, row: Tensor) -> Tensor:
    blocks = table[:, 0].index_select(0, row.long()).long()
    return held.index_put_((blocks,), new.reshape(*new.shape[:2], held.shape[1], held.shape[3]).transpose(1, 2))


def _attend(
    q: Tensor, keys: Tensor, values: Tensor, table: Tensor, token_seq: Tensor, seen: Tensor | None = None, *, scale: float,
    softcap: float = 0.0,
) -> Tensor:  # fmt: skip
    out, heads = torch.zeros_like(q), keys.shape[1]
    at = table[:, 0].index_select(0, token_seq.long()).tolist()
    counts = [keys.shape[2]] * len(at) if seen is None else seen.tolist()
    for t, (block, n) in enumerate(zip(at, counts, strict=True)):
        if not n:
            continue
        # For one row the fused attention is several times slower in bfloat16 than in float32, conversion included.
        groups = q[t].reshape(heads, -1, q.shape[2])
        one, k, v = (x.to(torch.float32).unsqueeze(0) for x in (groups, keys[block][:, :n], values[block][:, :n]))
        if softcap:
            weights = torch.softmax(torch.tanh(one @ k.mT * (scale / softcap)) * softcap, -1)
            out[t] = (weights @ v)[0].flatten(0, 1)
            continue
        out[t] = F.scaled_dot_product_attention(one, k, v, scale=scale)[0].flatten(0, 1)
    return out


CROSS = (
    Kernel("cross_write", "in-place", _write, batch_invariant=True),
    Kernel("cross_attention", "torch-fused", _attend, batch_invariant=True),
)
