"""What a device did while something ran, from torch's profiler: which kernels, and when there was none.

Operations that one call launched belong together: a graph's kernels have the correlation id of its launch. So time in which
nothing runs can be told apart: inside a graph, where only the graph can change it, and between launches, where the host is
late.
"""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

MOST = 15
"""Kernels of a table."""


@dataclass(frozen=True, slots=True)
class Span:
    """One operation of the device, in nanoseconds. launch: equal for those that one call launched; 0: unknown."""

    name: str
    start: int
    end: int
    launch: int


def recorded(run: Callable[[], Any], device: torch.device) -> list[Span]:
    """What the device did during `run`, by start. Where the host is the device: torch's own operations there, so that this has
    been tried."""
    from torch.profiler import ProfilerActivity, profile

    kinds = {"cuda": ProfilerActivity.CUDA, "xpu": ProfilerActivity.XPU}
    host = device.type not in kinds
    with profile(activities=[ProfilerActivity.CPU if host else kinds[device.type]]) as result:
        run()
    spans = [
        Span(e.name(), e.start_ns(), e.start_ns() + e.duration_ns(), e.correlation_id())
        for e in result.profiler.kineto_results.events()
        if host or e.device_type() != torch.autograd.DeviceType.CPU
    ]
    return sorted(spans, key=lambda s: s.start)


def launches(spans: Sequence[Span]) -> list[list[Span]]:
    """The spans by the call that launched them, by start; one whose call is unknown is alone."""
    groups: dict[Any, list[Span]] = defaultdict(list)
    for i, s in enumerate(spans):
        groups[s.launch or ("alone", i)].append(s)
    return sorted(groups.values(), key=lambda g: g[0].start)


def uncovered(spans: Sequence[tuple[float, float]]) -> float | None:
    """The share of the time from the first start to the last end that lies in none of the spans, sorted by start."""
    if not spans:
        return None
    covered, at = 0.0, spans[0][0]
    for start, end in spans:
        covered += max(0.0, end - max(start, at))
        at = max(at, end)
    whole = at - spans[0][0]
    return 1 - covered / whole if whole else None


def idle(spans: Sequence[Span]) -> dict[str, Any]:
    """between_fraction: the share of the time that lies in no launch, a graph counted as one from its first kernel to its
    last. inside_fraction: what the gaps inside graphs add. graph_seconds, gap_seconds: median length of a graph, and of the
    time from one's end to the start of the next; None without graphs."""
    each = launches(spans)
    ends = [(g[0].start, max(s.end for s in g)) for g in each]
    graphs = [e for e, g in zip(ends, each, strict=True) if len(g) > 1]
    gaps = [max(0, b[0] - a[1]) for a, b in itertools.pairwise(graphs)]
    between, whole = uncovered(ends), uncovered([(s.start, s.end) for s in spans])
    return {
        "between_fraction": between,
        "inside_fraction": None if whole is None or between is None else max(0.0, whole - between),
        "graphs": len(graphs), "operations": len(spans),
        "graph_seconds": statistics.median(b - a for a, b in graphs) / 1e9 if graphs else None,
        "gap_seconds": statistics.median(gaps) / 1e9 if gaps else None,
    }  # fmt: skip


def waits(spans: Sequence[Span], start: int, end: int) -> dict[str, float | None]:
    """Seconds without an operation from start to end, host times in nanoseconds since the epoch: before the first operation,
    between operations, and after the last."""
    if not spans:
        return {"before_seconds": None, "between_seconds": None, "after_seconds": None}
    last = max(s.end for s in spans)
    between = (uncovered([(s.start, s.end) for s in spans]) or 0.0) * (last - spans[0].start)
    parts = {"before": spans[0].start - start, "between": between, "after": end - last}
    return {f"{name}_seconds": time / 1e9 for name, time in parts.items()}


def one_step(spans: Sequence[Span]) -> tuple[str, list[Span]]:
    """(what it is, the spans of one decode step): the graph in the middle, or all where there is none."""
    graphs = [g for g in launches(spans) if len(g) > 1]
    if not graphs:
        return "every step, none of them a graph", list(spans)
    longest = max(len(g) for g in graphs)
    steps = [g for g in graphs if len(g) >= longest / 2]  # a step is the largest graph there is
    return "one graph", steps[len(steps) // 2]


def top(spans: Sequence[Span], most: int = MOST) -> list[dict[str, Any]]:
    """Operations by name, those that took longest first: how often, microseconds in all, share of all operations' time."""
    seconds: dict[str, int] = defaultdict(int)
    count: dict[str, int] = defaultdict(int)
    for s in spans:
        seconds[s.name] += s.end - s.start
        count[s.name] += 1
    whole = sum(seconds.values()) or 1
    return [
        {"kernel": n[:120], "count": count[n], "us": round(seconds[n] / 1e3, 1), "share": round(seconds[n] / whole, 4)}
        for n in sorted(seconds, key=lambda n: -seconds[n])[:most]
    ]
