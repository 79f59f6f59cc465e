"""Which product and which tiles are fastest here, and which keep a row's bits whatever the number of rows. JSON, and a
proposal for tiles/ARCH.json.

    python ci/gpu/sweep.py --device cuda [--quick] [--only attention] [--seconds 380] [--output-json FILE]

The five products of Llama 3 1B and 8B by cuBLAS, by cuBLASLt without split sums, and by our kernel with a list of tiles; then
attention with a list of tiles. Libraries come first, as they take seconds. What is known is written as it is known.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from contestants import LIBRARIES

HERE = Path(__file__).parent
CONTESTANTS = (*LIBRARIES, "tiles", "attention")
ATTENTION = ("exact", "exact_prefill", "decode", "prefill")
"""Attention launches of tiles/ARCH.json."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", required=True, help="platform to run on")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that everything runs")
    parser.add_argument("--only", nargs="+", choices=CONTESTANTS, default=CONTESTANTS, help="of these (default: all)")
    given = float(os.environ.get("PART_SECONDS", "380"))  # as `ci/gpu/run` says it
    parser.add_argument("--seconds", type=float, default=given, help="for all of it (default %(default)g)")
    parser.add_argument("--output-json", type=Path)
    args = parser.parse_args()
    end = time.monotonic() + args.seconds - 5  # to write it down
    records: list[dict[str, Any]] = []
    ended = {}
    for i, name in enumerate(args.only):
        share = (end - time.monotonic()) / (2 if i + 1 < len(args.only) else 1)  # half of what is left, the last one all
        ended[name] = run(name, args, share, lambda r: _keep(records, r, args.output_json))
        print(f"{name}: {ended[name]}", flush=True)
    report = summarise(records) | {"ended": ended}
    _write(args.output_json, report)
    print("\n".join(report["lines"]))
    if args.output_json and report["proposed"]:
        file = args.output_json.with_name(f"tiles-{report['arch']}.json")
        file.write_text(json.dumps(report["proposed"], indent=2) + "\n")
    good = all(words == "done" for words in ended.values()) and not any("wrong_by" in r for r in records)
    return 0 if good and not report["nothing"] else 1


def run(name: str, args: argparse.Namespace, seconds: float, keep: Callable[[dict[str, Any]], None]) -> str:
    """One contestant's process, its records as they come; how it ended."""
    command = [
        sys.executable,
        str(HERE / "contestants.py"),
        name,
        "--device",
        args.device,
        *(["--quick"] if args.quick else []),
    ]
    env = {**os.environ, **LIBRARIES.get(name, {})}
    if args.quick:
        env["TRITON_INTERPRET"] = "1"
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        timer = threading.Timer(max(1.0, seconds), process.kill)
        timer.start()
        try:
            for line in process.stdout:
                if line.startswith("{"):
                    keep(json.loads(line))
        finally:
            alive = timer.is_alive()
            timer.cancel()
    if not alive:
        return f"ended after its {seconds:.0f} s"
    return "done" if process.returncode == 0 else f"failed with {process.returncode}"


def _keep(records: list[dict[str, Any]], record: dict[str, Any], path: Path | None) -> None:
    records.append(record)
    if len(records) % 20 == 0:
        _write(path, summarise(records))


def _write(path: Path | None, report: Mapping[str, Any]) -> None:
    if path is not None:
        path.write_text(json.dumps(report) + "\n")


def summarise(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """All records, what they say in a few lines, and the tiles they propose (None while too little is known)."""
    about = next((r for r in records if r["kind"] == "about"), {})
    base = next((r["tiles"] for r in records if r["kind"] == "base"), None)
    timed = [r for r in records if "us" in r and "wrong_by" not in r]
    products = [r for r in timed if r["kind"] == "product"]
    attention = [r for r in timed if r["kind"] == "attention"]
    proposed = propose(base, products, attention) if base else None
    nothing = hopeless(records)
    return {
        "arch": about.get("arch"), "torch": about.get("torch"), "nothing": nothing,
        "lines": [*nothing, *lines(products, proposed, base), *attention_lines(attention)], "proposed": proposed,
        "records": [r for r in records if r["kind"] in ("product", "attention")],
    }  # fmt: skip


def hopeless(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each kind of record of which none could be timed, or a right one: that is no tile's fault."""
    out = []
    for kind, by in dict.fromkeys((r["kind"], r.get("by", "ours")) for r in records if r["kind"] in ("product", "attention")):
        mine = [r for r in records if r["kind"] == kind and r.get("by", "ours") == by]
        if not any("us" in r and "wrong_by" not in r for r in mine):
            why = mine[0].get("error") or f"wrong by {mine[0]['wrong_by']:.2g} of the largest"
            out.append(f"{kind} by {by}: none of {len(mine)} worked; the first: {why}")
    return out


def lines(
    products: Sequence[Mapping[str, Any]], proposed: Mapping[str, Any] | None, base: Mapping[str, Any] | None
) -> list[str]:
    """A line per matrix: microseconds by rows, each contestant's; and whether its bits are the same in any number of rows."""
    out = []
    names = list(dict.fromkeys(r["by"] for r in products))
    for by in names:
        mine = [r for r in products if r["by"] == by]
        differ = sorted({f"{r['matrix']} x {r['rows']}" for r in mine if not r["same_bits"]})
        out.append(f"{by}: a row's bits " + (f"differ in {len(differ)} of {len(mine)}: {', '.join(differ[:4])}" if differ
                                             else f"are equal in all {len(mine)} sizes"))  # fmt: skip
    if proposed and base:
        changed = {k: v for k, v in proposed["product"].items() if v != base["product"][k]}
        changed |= {k: proposed["attention"][k] for k in ATTENTION
                    if proposed["attention"][k] != base["attention"][k]}  # fmt: skip
        out.append(f"proposed: {json.dumps(changed)}" if changed else "proposed: the tiles there are")
    for matrix in dict.fromkeys(r["matrix"] for r in products):
        cells = []
        for by in names:
            best: dict[int, float] = {}
            for r in products:
                if r["matrix"] == matrix and r["by"] == by:
                    best[r["rows"]] = min(r["us"], best.get(r["rows"], math.inf))
            cells.append(f"{by} " + "/".join(f"{best[n]:.0f}" for n in sorted(best)))
        out.append(f"{matrix}, us: " + "; ".join(cells))
    return out


def attention_lines(attention: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each launch of each model: microseconds by rows x keys, warps and stages, the fastest first. "other bits": a
    tile's results differ from those of the tile tried first, where they should not."""
    out = []
    for launch, model, case in dict.fromkeys((r["launch"], r.get("model"), r.get("case")) for r in attention):
        mine = [r for r in attention if (r["launch"], r.get("model"), r.get("case")) == (launch, model, case)]
        cells = []
        for r in sorted(mine, key=lambda r: r["us"]):
            bits = "" if r.get("same_bits", True) else " other bits"
            cells.append("{rows}x{keys} {warps}w {stages}s ".format(**r["tile"]) + f"{r['us']:.0f}{bits}")
        out.append(f"attention {launch} of {model} {case}, us: " + "; ".join(cells))
    return out


def propose(
    base: Mapping[str, Any], products: Sequence[Mapping[str, Any]], attention: Sequence[Mapping[str, Any]]
) -> dict[str, Any] | None:  # fmt: skip
    """tiles/ARCH.json with the fastest of what was timed, by the geometric mean of a tile's time over the best tile's. There is
    a tile for every number of rows timed, over all matrices. Only tiles that were timed in every size count, and only those
    whose rows keep their bits."""
    result: dict[str, Any] = json.loads(json.dumps({k: v for k, v in base.items() if k != "arch"}))
    triton = [r for r in products if r["by"] == "triton"]
    bad = {_tile(r) for r in triton if not r.get("same_bits", True)}
    shapes: list[dict[str, int]] = []
    before = 0
    for rows in sorted({r["rows"] for r in triton}):
        cost = _costs([r for r in triton if r["rows"] == rows and _tile(r) not in bad])
        if not cost:
            continue
        best = dict(min(cost, key=lambda t: cost[t]))
        if shapes and all(shapes[-1][k] == v for k, v in best.items()):
            shapes[-1]["most"] = rows
        else:
            shapes.append({**best, "least": before + 1, "most": rows, "programs": 0})
        before = rows
    if shapes:
        shapes[-1]["most"] = 0
        result["product"]["dense"] = shapes
    for kind in ATTENTION:
        cost = _costs([r for r in attention if r["launch"] == kind])
        if cost:
            result["attention"][kind] |= dict(min(cost, key=lambda t: cost[t]))
    return result if shapes or attention else None


def _tile(record: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(record["tile"].items()))


def _costs(records: Iterable[Mapping[str, Any]]) -> dict[tuple[tuple[str, int], ...], float]:
    """Tile -> mean logarithm of its time over the best, of tiles timed in every case."""
    times: dict[Any, dict[Any, float]] = defaultdict(dict)
    bad = set()
    for r in records:
        tile = _tile(r)
        case = tuple(r.get(k) for k in ("matrix", "rows", "model", "case"))
        times[case][tile] = r["us"]
        if not r.get("same_bits", True):
            bad.add(tile)
    every = set.intersection(*(set(t) for t in times.values())) - bad if times else set()
    best = {case: min(t.values()) for case, t in times.items()}
    return {
        tile: sum(math.log(t[tile] / best[case]) for case, t in times.items()) / len(times) for tile in every
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
