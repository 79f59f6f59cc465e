"""From outcomes to figures: rates, percentiles, goodput, a table, a plot. Pure functions. Sends nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from thalweg.bench.client import Outcome
from thalweg.errors import ConfigError

METRICS = {
    "ttft": "time to first token",
    "tpot": "time per output token after the first",
    "itl": "time between events with tokens",
    "e2el": "end to end",
}


def values(outcomes: Sequence[Outcome], metric: str) -> list[float]:
    """Milliseconds of the requests that were answered. tpot: of those with two tokens or more."""
    good = [o for o in outcomes if o.ok]
    match metric:
        case "ttft":
            out = [o.ttft for o in good]
        case "tpot":
            out = [o.tpot for o in good if o.output_tokens > 1]
        case "itl":
            out = [t for o in good for t in o.itls]
        case _:
            out = [o.latency for o in good]
    return [1e3 * v for v in out]


def meets(o: Outcome, levels: Mapping[str, float]) -> bool:
    """Was it answered, and each of its ttft, tpot, e2el (ms) within its level?"""
    own = {"ttft": o.ttft, "tpot": o.tpot, "e2el": o.latency}
    return o.ok and all(1e3 * own[k] <= v for k, v in levels.items())


def summary(
    outcomes: Sequence[Outcome],
    seconds: float,
    *,
    percents: Sequence[float],
    metrics: Sequence[str],
    levels: Mapping[str, float],
) -> dict[str, Any]:
    """The figures under the names the field uses. seconds: first request sent to last answer ended."""
    good = [o for o in outcomes if o.ok]
    read, built = sum(o.prompt_tokens for o in good), sum(o.output_tokens for o in good)
    result: dict[str, Any] = {
        "duration": seconds,
        "completed": len(good),
        "failed": len(outcomes) - len(good),
        "total_input_tokens": read,
        "total_output_tokens": built,
        "request_throughput": len(good) / seconds,
        "request_goodput": sum(meets(o, levels) for o in outcomes) / seconds if levels else None,
        "output_throughput": built / seconds,
        "total_token_throughput": (read + built) / seconds,
        "max_output_tokens_per_s": _peak_rate(good),
        "max_concurrent_requests": _peak_open(good),
    }
    for metric in METRICS:
        v = values(outcomes, metric) or [0.0]
        result |= {f"mean_{metric}_ms": float(np.mean(v)), f"median_{metric}_ms": float(np.median(v))}
        result[f"std_{metric}_ms"] = float(np.std(v))
        if metric in metrics:
            result |= {f"p{p:g}_{metric}_ms": float(np.percentile(v, p)) for p in percents}
    return result


def _peak_rate(good: Sequence[Outcome]) -> float:
    """Tokens in the busiest second. A request's tokens are spread evenly over its events."""
    if not good:
        return 0.0
    begin = min(o.start for o in good)
    bins: dict[int, float] = {}
    for o in good:
        each = o.output_tokens / (len(o.itls) + 1)
        for at in o.start - begin + o.ttft + np.cumsum([0.0, *o.itls]):
            bins[int(at)] = bins.get(int(at), 0.0) + each
    return float(max(bins.values()))


def _peak_open(good: Sequence[Outcome]) -> int:
    edges = sorted([(o.start, 1) for o in good] + [(o.start + o.latency, -1) for o in good])
    return int(np.cumsum([e for _, e in edges]).max()) if edges else 0


def table(result: Mapping[str, Any], metrics: Sequence[str], percents: Sequence[float]) -> str:
    """For people."""
    rows = [
        ("requests completed / failed", f"{result['completed']} / {result['failed']}"),
        ("duration (s)", f"{result['duration']:.2f}"),
        ("tokens in / out", f"{result['total_input_tokens']} / {result['total_output_tokens']}"),
        ("requests per second", f"{result['request_throughput']:.2f}"),
        ("output tokens per second", f"{result['output_throughput']:.1f}"),
        ("tokens per second, in and out", f"{result['total_token_throughput']:.1f}"),
        ("output tokens in the busiest second", f"{result['max_output_tokens_per_s']:.0f}"),
        ("most requests open at once", f"{result['max_concurrent_requests']}"),
    ]
    if result["request_goodput"] is not None:
        rows.insert(4, ("requests per second within the levels", f"{result['request_goodput']:.2f}"))
    width = max(len(name) for name, _ in rows)
    lines = [f"{name:{width}}  {value:>16}" for name, value in rows]
    heads = ["mean", "median", *(f"p{p:g}" for p in percents)]
    lines += ["", f"{'milliseconds':{width}}" + "".join(f"{h:>10}" for h in heads)]
    for metric in metrics:
        cells = "".join(f"{result[f'{h}_{metric}_ms']:10.2f}" for h in heads)
        lines.append(f"{METRICS[metric]} ({metric})".ljust(width) + cells)
    return "\n".join(lines)


def check_plot(path: str | None) -> None:
    """ConfigError before the test if a plot could not be written after it."""
    if path is None:
        return
    if not path.endswith(".png") or not Path(path).absolute().parent.is_dir():
        raise ConfigError(f"--plot: {path!r} must be a .png file in a directory that exists")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ConfigError("--plot: needs matplotlib; pip install 'thalweg[bench]', or remove the flag") from None


def plot(path: str, outcomes: Sequence[Outcome], metrics: Sequence[str], title: str) -> None:
    """One PNG: the share of requests (or events) below each time, a panel per metric."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4 * len(metrics), 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    for i, metric in enumerate(metrics):
        v = np.sort(values(outcomes, metric))
        axes = figure.add_subplot(1, len(metrics), i + 1)
        if v.size:
            axes.step(v, np.arange(1, v.size + 1) / v.size, where="post")
            if v[0] > 0:  # several events of one read are no time apart
                axes.set_xscale("log")
        axes.set(xlabel=f"{metric} (ms)", ylim=(0, 1.01), title=METRICS[metric])
        axes.title.set_fontsize(9)
        axes.grid(alpha=0.3)
        if i == 0:
            axes.set_ylabel("share at or below")
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=110)
