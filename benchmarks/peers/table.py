"""Reports made readable: figures and conditions of each run, and thalweg's ratios to each peer on weights of the same width.

A ratio compares two runs of one report only: figures from two reports were taken under two conditions of the machine.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from benchmarks.peers.engines import OURS
from benchmarks.peers.workloads import counted

COLUMNS = (
    ("load_s", "load s", ".1f"), ("ttft_s", "TTFT 512 s", ".2f"), ("decode_tok_s", "decode tok/s", ".1f"),
    ("prefill_tok_s", "prefill 2,048 tok/s", ".0f"), ("streams16_tok_s", "16 streams tok/s", ".0f"),
    ("streams32_tok_s", "32 streams tok/s", ".0f"), ("mixed_tok_s", "mixed tok/s", ".0f"),
    ("shared_cold_s", "16 x shared 1,024 cold s", ".1f"),
    ("shared_warm_s", "warm s", ".1f"), ("start_s", "start to first token s", ".1f"), ("peak_rss_mib", "peak RSS MiB", ",.0f"),
)  # fmt: skip
"""Figure, heading, format."""


def better(key: str) -> bool:
    """Whether more of a figure is better: rates are, times and memory are not."""
    return key.endswith("tok_s")


def ratios(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Per run of thalweg and of a peer, thalweg to it on weights of one width, figure by figure: above 1, it is ahead.
    tokens: how many of the answers' first tokens are the same, and of how many; rounding differs, so equal weights give most
    and not all."""
    whole = [r for r in report["runs"] if "error" not in r]
    out = []
    for mine, peer in itertools.product(whole, whole):
        if mine["engine"] not in OURS or peer["engine"] in OURS or mine["weights"] != peer["weights"]:
            continue
        a, b = mine["figures"], peer["figures"]
        cells = {key: a[key] / b[key] if better(key) else b[key] / a[key] for key, _, _ in COLUMNS if key in a and key in b}
        pairs = [pair for call, tokens in mine["first_tokens"].items()
                 for pair in zip(tokens, peer["first_tokens"].get(call, ()), strict=False)]  # fmt: skip
        same = sum(x == y for x, y in pairs)
        names = {"ours": mine["engine"], "peer": peer["engine"], "weights": peer["weights"]}
        out.append({**names, "cells": cells, "tokens": (same, len(pairs))})
    return out


def text(reports: Sequence[dict[str, Any]]) -> str:
    """All of it in Markdown."""
    return "\n\n".join("\n\n".join((_head(r), _figures(r), _ratios(r), _conditions(r))) for r in reports)


def _head(report: dict[str, Any]) -> str:
    machine, shape = report["machine"], report["shape"]
    cut = f", cut to {report['layers']} layers" if report["layers"] else ""
    scaled = f" **Lengths divided by {report['scale']}: figures not to be quoted.**" if report["scale"] != 1 else ""
    return (
        f"{report['date']}: {shape} shape{cut}; {machine['processor']}, {len(report['cores'])} cores "
        f"({', '.join(machine['instructions'])}), {machine['memory_gib']} GiB; medians of the {report['repeats']} quietest "
        f"repeats; KV pool {report['kv_gib']} GiB, at most {report['max_model_len']} tokens a request.{scaled}"
    )


def _figures(report: dict[str, Any]) -> str:
    rows = [["engine, weights", *(title for _, title, _ in COLUMNS)]]
    for run in report["runs"]:
        name = f"{run['engine']} {_versions(run)}, {run['files'] if run['engine'] not in OURS else run['weights']}"
        if "error" in run:
            rows.append([name, f"failed: {run['error'].splitlines()[0]}", *[""] * (len(COLUMNS) - 1)])
            continue
        figures = run["figures"]
        rows.append([name, *(format(figures[key], how) if key in figures else "-" for key, _, how in COLUMNS)])
    return _markdown(rows)


def _ratios(report: dict[str, Any]) -> str:
    rows = [["above 1: thalweg is ahead", *(title for _, title, _ in COLUMNS), "same first token"]]
    for r in ratios(report):
        cells = [f"{r['cells'][key]:.2f}" if key in r["cells"] else "-" for key, _, _ in COLUMNS]
        rows.append([f"{r['ours']} / {r['peer']}, {r['weights']}", *cells, f"{r['tokens'][0]} of {r['tokens'][1]}"])
    return _markdown(rows) if len(rows) > 1 else "No peer and thalweg on weights of one width: no ratios."


def _conditions(report: dict[str, Any]) -> str:
    """What a figure must be read with: the machine's limits around each run, and how much of it the engine had."""
    rows = [
        [
            "engine, weights",
            "read GB/s before, after",
            "GEMM Gop/s before, after",
            "load average",
            "cores busy",
            "others",
            "stolen",
        ]
    ]
    around = report["conditions"]
    for i, run in enumerate(report["runs"]):
        points = around[i : i + 2]  # one where the run was broken off
        pairs = [
            "; ".join(f"{form} {', '.join(str(p[key][form]) for p in points)}" for form in points[0][key])
            for key in ("read_gb_per_s", "gemm_gop_per_s")
        ]
        shares = [_mean(run, key, report["repeats"]) for key in ("cores", "others", "stolen")]
        rows.append([f"{run['engine']}, {run['weights']}", *pairs, f"{points[0]['load_average']:.2f}", *shares])
    return _markdown(rows)


def _mean(run: dict[str, Any], key: str, repeats: int) -> str:
    """Over all calls that count, weighted by their time."""
    samples = [s for each in run.get("samples", {}).values() for s in counted(each, repeats)]
    calls = [(s["seconds"][c], s[key][c]) for s in samples for c in s["seconds"]]
    total = sum(seconds for seconds, _ in calls)
    return f"{sum(seconds * value for seconds, value in calls) / total:.2f}" if total else "-"


def _versions(run: dict[str, Any]) -> str:
    return next(iter(run.get("versions", {}).values()), "")


def _markdown(rows: list[list[str]]) -> str:
    head, *body = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([head, "|" + "---|" * len(rows[0]), *body])
