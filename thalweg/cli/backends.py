"""`thalweg backends`: backends available here, and why the others are not. Asks the platforms. Loads no framework."""

from __future__ import annotations

import orjson

from thalweg.cli import matrix
from thalweg.cli.flags import Parser
from thalweg.hal import discovery


def run(words: list[str]) -> int:
    parser = Parser(prog="thalweg backends", description="Which platforms this machine has, and why not the others.")
    parser.add_argument("--json", action="store_true", help="machine-readable")
    parser.add_argument("--matrix", action="store_true", help="how far each op's kernels have been taken, in Markdown")
    args = parser.parse_args(words)
    if args.matrix:
        files = matrix.evidence()
        print(
            orjson.dumps(matrix.cells(files), option=orjson.OPT_INDENT_2).decode() if args.json else matrix.page(files), end=""
        )
        return 0
    as_json = args.json
    rows = listing()
    print(orjson.dumps(rows, option=orjson.OPT_INDENT_2).decode() if as_json else table(rows))
    return 0


def listing() -> list[dict[str, object]]:
    """One object per installed platform, best first."""
    probes = discovery.probe_all()
    best = max((p.score for p in probes.values()), default=0)
    return [
        {"platform": name, "available": p.score > 0, "auto": 0 < p.score == best, "score": p.score, "reason": p.reason}
        for name, p in sorted(probes.items(), key=lambda item: (-item[1].score, item[0]))
    ]


def table(rows: list[dict[str, object]]) -> str:
    width = max([8, *(len(str(r["platform"])) for r in rows)])
    lines = [f"{'platform':{width}}  here  reason"]
    for r in rows:
        here = "auto" if r["auto"] else "yes" if r["available"] else "no"
        lines.append(f"{r['platform']:{width}}  {here:4}  {r['reason']}")
    return "\n".join(lines)
