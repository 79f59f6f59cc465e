"""Where the time of a prompt and of a decoding step goes, function by function, as the device counts it."""

from __future__ import annotations

import time
from typing import Any

from thalweg.hal.times import Times
from thalweg.params import SamplingParams

REST = "everything else"
"""Time outside the device's functions: torch's operations, and the host between steps."""


def measure(llm: Any, prompts: list[dict[str, Any]], output_len: int) -> dict[str, dict[str, dict[str, float]]] | None:
    """{"prefill" | "decode": {function: {"calls", "seconds"}}}, of the prompts, and of an average decoding step of the whole
    batch. None: the device does not count. output_len: at least 2."""
    for _ in range(2):  # a device may record a graph on the second run, and replay it only then
        _run(llm, prompts, output_len)
    first, whole = _run(llm, prompts, 1), _run(llm, prompts, output_len)
    if first is None or whole is None:
        return None
    steps = output_len - 1
    return {
        "prefill": {name: {"calls": first.calls[name], "seconds": s} for name, s in first.seconds.items()},
        "decode": {
            name: {
                "calls": (whole.calls[name] - first.calls.get(name, 0)) / steps,
                "seconds": max(s - first.seconds.get(name, 0.0), 0.0) / steps,
            }
            for name, s in whole.seconds.items()
            if whole.calls[name] > first.calls.get(name, 0)
        },
    }


def _run(llm: Any, prompts: list[dict[str, Any]], output_len: int) -> Times | None:
    llm.reset_prefix_cache()
    params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=output_len, detokenize=False)
    times: Times | None
    with llm.device.record_times() as times:
        begun = time.perf_counter()
        llm.generate(prompts, params, use_tqdm=False)
        took = time.perf_counter() - begun
    if times is not None:
        times.add(REST, max(took - sum(times.seconds.values()), 0.0))
        times.calls[REST] = output_len
    return times


def table(phases: dict[str, dict[str, dict[str, float]]]) -> str:
    """For people: the functions of each phase, the longest first."""
    lines = []
    for phase, found in phases.items():
        total = sum(f["seconds"] for f in found.values())
        lines.append(
            f"{phase + ': ' + format(total * 1e3, '.2f') + ' ms':28} {'calls':>8} {'ms':>10} {'share':>7} {'us a call':>10}"
        )
        for name, f in sorted(found.items(), key=lambda item: -item[1]["seconds"]):
            each = f"{f['seconds'] / f['calls'] * 1e6:10.1f}" if f["calls"] else ""
            lines.append(f"{name:28} {f['calls']:8.1f} {f['seconds'] * 1e3:10.2f} {f['seconds'] / total:7.1%} {each}")
    return "\n".join(lines)
