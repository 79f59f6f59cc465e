"""How fast a GPU's L2 cache is read: a Triton kernel that reads one array, small enough for it, again and again.

Loads leave out the caches that are nearer (`.cg`), and a program reads another program's part in the next pass.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 4096
"""Values of a part: 16 KiB."""
STRIDE = 17
"""Parts between those that a program reads in turn."""


@triton.jit  # type: ignore[untyped-decorator]
def _read_again(x, out, passes, STRIDE: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore
    me, parts = tl.program_id(0), tl.num_programs(0)
    at = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for i in range(passes):
        total += tl.load(x + (me + i * STRIDE) % parts * BLOCK + at, cache_modifier=".cg")
    tl.store(out + me, tl.sum(total))


def read_again(x: torch.Tensor, passes: int) -> torch.Tensor:
    """Sums of what each program read of x [parts * BLOCK] in so many passes: [parts], float32."""
    parts = x.numel() // BLOCK
    out = torch.empty(parts, dtype=torch.float32, device=x.device)
    _read_again[(parts,)](x, out, passes, STRIDE=STRIDE, BLOCK=BLOCK, num_warps=8)
    return out
