"""RWKV-7's delta rule on host memory: each state is updated where it lies, without arrays of its size."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from thalweg.hal.op import Kernel


def _general_rule(
    read: Tensor, decay: Tensor, key: Tensor, value: Tensor, away: Tensor, back: Tensor, held: Tensor, table: Tensor,
    context: Tensor, query: Tensor, last_row: Tensor, token_seq: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`ops.general_delta_rule`. It looks at the block table, so no graph can record it. Products of matrices and vectors are
    numpy's, which are faster than torch's at this size. New arrays as large as a state would be mapped for each token."""
    out = torch.empty_like(value, memory_format=torch.contiguous_format)
    found, states = torch.empty((*value.shape[1:], 1), dtype=value.dtype), held.numpy()
    found_at, out_at = found.numpy(), out.unsqueeze(3).numpy()
    reads, aways = read.unsqueeze(3).numpy(), away.unsqueeze(3).numpy()
    rows, columns = [each.unsqueeze(2).unbind(0) for each in (decay, back, key)], value.unsqueeze(3).unbind(0)
    blocks, past, begins = table.tolist(), context.tolist(), (last_row - query + 1).tolist()
    for t, (seq, d, b, k, v) in enumerate(zip(token_seq.tolist(), *rows, columns, strict=True)):
        source, target = blocks[seq][:2]
        state, at = held[target], states[target]
        if t == begins[seq] and not past[seq]:
            state.zero_()
        elif t == begins[seq] and source != target:
            state.copy_(held[source])
        np.matmul(at, aways[t], out=found_at)
        state.mul_(d).addcmul_(found, b).addcmul_(v, k)
        np.matmul(at, reads[t], out=out_at[t])
    return out, held


GENERAL_DELTA = (Kernel("general_delta_rule", "in-place-host", _general_rule, batch_invariant=True),)
