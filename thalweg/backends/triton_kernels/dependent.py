"""Programmatic dependent launch, of NVIDIA GPUs from compute capability 9.0 on: the programs of a launch may start before the
launch ahead of it has ended, and then wait for it.

Every launch with the attribute waits before its first access to memory, in every program. The end of a launch therefore
implies the end of all launches ahead of it, also where a launch without the attribute follows. `ci/gpu/compile.py` checks in
the PTX that no access comes before the wait.
"""

import triton
import triton.language as tl

from thalweg.backends.triton_kernels.tiles import TileSizes


@triton.jit
def wait_for_launches(DEPENDENT: tl.constexpr):
    """The first statement of a kernel. The next launch may start as soon as all programs of this one have reached it: its
    programs then occupy what this one's leave free, and wait as these do."""
    if DEPENDENT:
        tl.inline_asm_elementwise(
            "griddepcontrol.launch_dependents; // $0", "=r", [], dtype=tl.int32, is_pure=False, pack=1
        )  # fmt: skip
        tl.inline_asm_elementwise("griddepcontrol.wait; // $0", "=r", [], dtype=tl.int32, is_pure=False, pack=1)


def declare_dependence(t: TileSizes) -> dict[str, bool]:
    """Keyword arguments of a launch whose kernel calls `wait_for_launches`."""
    return {"DEPENDENT": True, "launch_pdl": True} if t.dependent else {"DEPENDENT": False}
