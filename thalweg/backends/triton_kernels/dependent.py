"""Programmatic dependent launch, of NVIDIA GPUs from compute capability 9.0 on: the programs of a launch may start before the
launch ahead of it has ended, and then wait for it.

Every program of such a launch waits before its first access to memory, but for prefetches of weights. The end of a launch
therefore implies the end of all launches ahead of it, also where a launch without the attribute follows. `ci/gpu/compile.py`
checks in the PTX that no access comes before the wait.
"""

import triton
import triton.language as tl

from thalweg.backends.triton_kernels.tiles import TileSizes


@triton.jit
def wait_for_launches(DEPENDENT: tl.constexpr):
    """Precedes every access to memory, but for prefetches of weights. The next launch may start as soon as all programs of this
    one have reached it: its programs then occupy what this one's leave free, and wait as these do."""
    if DEPENDENT:
        tl.inline_asm_elementwise(
            "griddepcontrol.launch_dependents; // $0", "=r", [], dtype=tl.int32, is_pure=False, pack=1
        )  # fmt: skip
        tl.inline_asm_elementwise("griddepcontrol.wait; // $0", "=r", [], dtype=tl.int32, is_pure=False, pack=1)


LINE = tl.constexpr(128)
"""Bytes of a line of the L2 cache."""


@triton.jit
def prefetch_weight(weight, rows_at, begin, width, DEPENDENT: tl.constexpr, LINES: tl.constexpr = 4):
    """Moves the beginning of rows of a weight into the L2 cache, before `wait_for_launches`: LINES lines from element `begin`
    on, of rows that begin at rows_at [N] and have `width` elements. No step writes a weight, and the L2 cache is coherent."""
    if DEPENDENT:
        each: tl.constexpr = LINE * 8 // weight.dtype.element_ty.primitive_bitwidth
        at = tl.minimum(begin + tl.arange(0, LINES) * each, width - 1)
        address = (weight + rows_at[:, None] + at[None, :]).to(tl.int64)
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [address], dtype=tl.int32, is_pure=False, pack=1
        )  # fmt: skip


def declare_dependence(t: TileSizes) -> dict[str, bool]:
    """Keyword arguments of a launch whose kernel calls `wait_for_launches`."""
    return {"DEPENDENT": True, "launch_pdl": True} if t.dependent else {"DEPENDENT": False}
