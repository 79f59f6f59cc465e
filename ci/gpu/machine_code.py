"""What the text of a compiled kernel says: its matrix instructions, registers, and first access to memory."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import triton

INSTRUCTION = re.compile(
    r"(wgmma)\.mma_async\.sync\.aligned\.(m\d+)n\d+(k\d+)|(mma\.sync)\.aligned\.(m\d+)n\d+(k\d+)|(tcgen05\.mma)\.\S*(kind::\w+)"
    r"|(v_mfma_\w*?)_(\d+x\d+x\d+)|(v_wmma_\w*?)_(\d+x\d+x\d+)"
)


ACCESS = re.compile(r"\b(ld|st|atom|red|cp)\.[\w.:]*(global|bulk)")
"""An access to the device's memory in PTX."""


def find_early_access(ptx: str) -> str | None:
    """What is wrong with a kernel whose launch is dependent: it accesses memory before it waits, or never waits."""
    wait, access = ptx.find("griddepcontrol.wait"), ACCESS.search(ptx)
    if wait < 0:
        return "a dependent launch without griddepcontrol.wait"
    early = access is not None and access.start() < wait
    return f"accesses memory before griddepcontrol.wait: {access[0]}" if access and early else None


def read_usage(asm: dict[str, Any]) -> tuple[int, int]:
    """(registers, bytes or registers in memory instead) of one thread."""
    if "cubin" in asm:
        tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
        with tempfile.NamedTemporaryFile(suffix=".cubin") as f:
            f.write(asm["cubin"])
            f.flush()
            text = subprocess.run([tool, "-res-usage", f.name], capture_output=True, text=True, check=True).stdout
        used = {k: int(v) for k, v in re.findall(r"(REG|STACK|LOCAL):(\d+)", text)}
        return used["REG"], used["STACK"] + used["LOCAL"]
    numbers = {k: int(v) for k, v in re.findall(r"\.(vgpr_count|vgpr_spill_count|sgpr_spill_count):\s*(\d+)", asm["amdgcn"])}
    return numbers["vgpr_count"], numbers["vgpr_spill_count"] + numbers["sgpr_spill_count"]


def read_reductions(ttgir: str) -> list[str]:
    """The layout of each reduction's operand, in the order of the program."""
    layouts = dict(re.findall(r"^(#\w+) = (.*)$", ttgir, re.M))
    operands = re.findall(r'"tt\.reduce".*?\}\) : \(tensor<[^>]*?, (#\w+)(?:>|\W)', ttgir, re.S)
    return [layouts[name] for name in operands]
