"""What nvidia-smi says of a board. It only reads: no setting of the board is changed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from typing import Any

SMI = "nvidia-smi"
WANTED: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "driver": (("Driver Version",),),
    "mig": (("MIG Mode", "Current"),),
    "ecc": (("ECC Mode", "Current"),),
    "performance_state": (("Performance State",),),
    "sm_clock": (("Clocks", "SM"),),
    "memory_clock": (("Clocks", "Memory"),),
    "most_sm_clock": (("Max Clocks", "SM"),),
    "most_memory_clock": (("Max Clocks", "Memory"),),
    "power_limit": (("GPU Power Readings", "Current Power Limit"), ("Power Readings", "Power Limit")),
    "default_power_limit": (("GPU Power Readings", "Default Power Limit"), ("Power Readings", "Default Power Limit")),
    "power": (("GPU Power Readings", "Instantaneous Power Draw"), ("GPU Power Readings", "Power Draw"),
              ("Power Readings", "Power Draw")),
    "temperature": (("Temperature", "GPU Current Temp"),),
}  # fmt: skip
"""Our name -> where versions of the tool have it."""
REASONS = ("Clocks Event Reasons", "Clocks Throttle Reasons")


def read_board() -> dict[str, Any]:
    """Clocks, ECC, MIG, power and why clocks are low, as far as the tool says: a slow board looks like slow code. "why": it
    says nothing."""
    if not shutil.which(SMI):
        return {"why": f"{SMI} is not installed"}
    try:
        done = subprocess.run([SMI, "-q"], capture_output=True, text=True, timeout=20, check=False)
    except subprocess.TimeoutExpired:
        return {"why": f"{SMI} -q did not end in 20 s"}
    if done.returncode:
        return {"why": f"{SMI} -q: {(done.stdout + done.stderr).strip()[-200:]}"}
    return summarise(done.stdout)


def summarise(text: str) -> dict[str, Any]:
    """Of the first board in the tool's output."""
    report = parse_indented(text)
    gpu = next((v for k, v in report.items() if k.startswith("GPU ") and isinstance(v, dict)), {})
    found: dict[str, Any] = {}
    for name, places in WANTED.items():
        values = (_find(gpu, place) or _find(report, place) for place in places)
        found[name] = next((v for v in values if v), None)
    reasons: dict[str, Any] = next((gpu[r] for r in REASONS if isinstance(gpu.get(r), dict)), {})
    found["clocks_low_for"] = sorted(k for k, v in reasons.items() if v == "Active" and k != "Idle")
    return found


def parse_indented(text: str) -> dict[str, Any]:
    """`key : value` lines and headings, by how far they are indented."""
    result: dict[str, Any] = {}
    open_at: list[tuple[int, dict[str, Any]]] = [(-1, result)]
    for line in text.splitlines():
        if not line.strip() or line.startswith("="):
            continue
        depth, (key, colon, value) = len(line) - len(line.lstrip()), line.strip().partition(" : ")
        while depth <= open_at[-1][0]:
            open_at.pop()
        if colon:
            open_at[-1][1].setdefault(key.strip(), value.strip())
        else:
            open_at.append((depth, open_at[-1][1].setdefault(key, {})))
    return result


def _find(tree: Mapping[str, Any], place: tuple[str, ...]) -> str | None:
    node: Any = tree
    for key in place:
        node = node.get(key) if isinstance(node, Mapping) else None
    return node if isinstance(node, str) else None
