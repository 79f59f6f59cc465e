"""The table at the end of `ci/gpu/run`: a line or a few per part, of what its figures say. A figure that can be predicted has
its prediction after it, and a mark where the two are far apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from shapes import group_by_case

LINES = 44
WIDTH = 170
APART = 4
"""Lines about figures that are not this run's."""
FAR = "OFF"
"""Marks a figure that is far from its prediction."""
Predict = Callable[[str, Mapping[str, Any]], float | None]
"""(name, value of a figure) -> the seconds that it should be."""


def predict_nothing(name: str, value: Mapping[str, Any]) -> float | None:
    """Predicts nothing."""
    return None


def table(summary: Mapping[str, Any], predict: Predict = predict_nothing) -> str:
    """At most LINES lines, the first of every part among them; what does not fit is in summary.json, as the last one says."""
    parts: Mapping[str, Any] = summary["parts"]
    top = _find_ceilings(parts)
    requested = {n: shows(n, p, top, predict) for n, p in parts.items() if p.get("why") != "not asked for"}
    end = [*_list_kept(parts), *_list_apart(summary), f"{summary.get('seconds', 0):.0f} s in all"]
    if before := summary.get("seconds_before"):
        end[-1] += f", {before:.0f} s in the runs before"
    if cache := summary.get("triton_cache"):
        end.insert(0, f"Triton cache: {cache['kernels_before']} kernels before, {cache.get('kernels_after', '?')} after")
    if idle := [name for name in parts if name not in requested]:
        end.insert(0, f"not asked for: {', '.join(idle)}")
    longest = max((len(lines_of) for lines_of in requested.values()), default=0)
    for most in range(longest, 0, -1):  # each part's last lines go first
        body = [line for name, lines_of in requested.items() for line in _rows(name, parts[name], lines_of[:most])]
        left_out = sum(max(0, len(lines_of) - most) for lines_of in requested.values())
        if 2 + len(body) + len(end) <= LINES or most == 1:
            break
    else:
        body, left_out = [], 0
    head = f"{'part':24} {'state':8} {'s':>5}  what it shows"
    more = [f"({left_out} more lines in summary.json)"] if left_out else []
    return "\n".join(line[:WIDTH].rstrip() for line in [head, *body, *more, *end])


def _rows(name: str, part: Mapping[str, Any], lines_of: list[str]) -> list[str]:
    first = f"{name:24} {part['state']:8} {part.get('seconds', 0):5.0f}  {lines_of[0] if lines_of else ''}"
    return [first, *(f"{'':41}{line}" for line in lines_of[1:])]


def _find_ceilings(parts: Mapping[str, Any]) -> Mapping[str, Any] | None:
    figures = parts.get("smoke", {}).get("figures")
    found = figures.get("ceilings") if isinstance(figures, Mapping) else None
    return found if found and "bandwidth" in found else None


def _list_kept(parts: Mapping[str, Any]) -> list[str]:
    """Which figures are of which earlier run, a line for a run: whole parts by their names."""
    by_run: dict[str, list[str]] = {}
    for part, p in parts.items():
        each: dict[str, list[str]] = {}
        for name, run in p.get("of", {}).items():
            each.setdefault(run, []).append(name.rpartition(": ")[2])
        for run, names in each.items():
            whole = len(names) == len(p.get("figures", ()))
            by_run.setdefault(run, []).append(part if whole else f"{part} ({', '.join(names)})")
    return [f"of the run {run}: {', '.join(some)}" for run, some in by_run.items()]


def _list_apart(summary: Mapping[str, Any]) -> list[str]:
    """Figures that are of something else than this run's, a line for a run, the newest first."""
    lines = []
    for words, runs in summary.get("apart", {}).items():
        for run in sorted(runs, key=lambda r: str(r["date"]), reverse=True):
            of = run["identity"] or {}
            figures = {n: f for p in run["parts"].values() for n, f in p.get("figures", {}).items() if ": step " in n}
            lines_of = [f"{n} {f['seconds'] * 1e3:.2f} ms" for n, f in figures.items() if "seconds" in f]
            lines.append(f"{words}, {of.get('card', '?')}, {run['name']}: {', '.join(lines_of) or 'no steps'}")
    return lines[:APART] + ([f"({len(lines) - APART} more runs apart, in summary.json)"] if len(lines) > APART else [])


def shows(
    name: str, part: Mapping[str, Any], top: Mapping[str, Any] | None = None, predict: Predict = predict_nothing
) -> list[str]:  # fmt: skip
    """What a part found, in a few short lines."""
    figures, about = part.get("figures"), part.get("about", {})
    if "why" in part:
        return [part["why"]]
    if "why" in about:
        return [about["why"]]
    if not isinstance(figures, Mapping):
        return [f"exit {part['exit']}; see {part['log']}"] if part.get("exit") else []
    if "why" in figures:
        return [figures["why"]]
    cases = group_by_case(figures)
    if cases and ("measure" in name or name.startswith("starts")):
        return [line for label, of in cases.items() for line in shape_lines(label, of, top, predict)]
    for kind, say in KINDS.items():
        if name.startswith(kind):
            return say({**about, **figures})
    return []


def _smoke(f: Mapping[str, Any]) -> list[str]:
    steps = {n: s for n, s in f.items() if isinstance(s, Mapping)}
    probe, top = steps.get("probe", {}), steps.get("ceilings", {})
    wrong = [n for n, s in steps.items() if not s.get("holds", True)]
    warned = [w for s in steps.values() for w in s.get("warned", ())]
    out = [f"{probe.get('name', '?')}, torch {probe.get('torch', '?')}, triton {probe.get('triton', '?')}"]
    if board := probe.get("board"):
        low = f", clocks low for {', '.join(board['clocks_low_for'])}" if board.get("clocks_low_for") else ""
        out[0] += board["why"] if "why" in board else (
            f", driver {board['driver']}, {board['sm_clock']} of {board['most_sm_clock']}, {board['power_limit']}, "
            f"ECC {board['ecc']}, MIG {board['mig']}{low}"
        )  # fmt: skip
    if "bandwidth" in top:
        read, copied = (top[f"{k}_bytes_per_second"] / 1e9 for k in ("read", "copy"))
        l2 = f"L2 {top['l2_bytes_per_second'] / 1e9:.0f} GB/s" if "l2_bytes_per_second" in top else "L2 unknown"
        out.append(f"reads {read:.0f} GB/s, copies {copied:.0f} GB/s, {l2}, "
                   f"multiplies {top['matrix_flops_per_second'] / 1e12:.2f} TFLOP/s")  # fmt: skip
    out.append(f"WRONG: {', '.join(wrong)}" if wrong else f"{', '.join(steps)}: hold")
    return out + [f"warned: {w}" for w in warned[:2]]


def _checks(f: Mapping[str, Any]) -> list[str]:
    words = {True: "holds", False: "DOES NOT HOLD", None: "does not apply"}
    return [", ".join(f"{n} {words[c['holds']]}" for n, c in f.items() if isinstance(c, Mapping) and "holds" in c)]


def _rows_test(f: Mapping[str, Any]) -> list[str]:
    each = {n: c for n, c in f.items() if isinstance(c, Mapping) and "holds" in c}
    wrong = {n: c for n, c in each.items() if c["holds"] is False}
    held = [n for n, c in each.items() if c["holds"]]
    other = f", {len(each) - len(held) - len(wrong)} do not apply"
    return [f"{len(held)} hold{other}" + (f", {len(wrong)} DO NOT HOLD" if wrong else "")] + [
        f"{n}: {', '.join(f'{k} {v}' for k, v in c.items() if k != 'holds')}" for n, c in wrong.items()
    ]


def _tests(f: Mapping[str, Any]) -> list[str]:
    lines_of = [f"{f['passed']} passed, {f['failed']} failed, {f['skipped']} skipped"]
    return lines_of + list(f["failures"][:3])


def shape_lines(
    label: str, f: Mapping[str, Any], top: Mapping[str, Any] | None = None, predict: Predict = predict_nothing
) -> list[str]:  # fmt: skip
    """A case's figures in words, as far as they go. f: without the label in their names. top: the machine's rates."""

    def cell(name: str, digits: int = 2) -> str:
        seconds, expected = f[name]["seconds"], predict(f"{label}: {name}", f[name])
        lines_of = f"{seconds * 1e3:.{digits}f} ms"
        return lines_of if expected is None else f"{lines_of} ({_compare(seconds, expected, digits)})"

    def of(kind: str) -> list[str]:
        names = [n for n in f if n.startswith(f"{kind} ") and "seconds" in f[n]]
        return sorted(names, key=lambda n: int(n.split()[1]) if n.split()[1].isdigit() else 0)

    lines_of = [f"{label}: {n}: error: {v['error']}" for n, v in f.items() if "error" in v]
    if "crowd" in f:
        lines_of.append(f"crowd {({True: 'holds', False: 'DOES NOT HOLD', None: 'does not apply'})[f['crowd'].get('holds')]}")
    if of("step"):
        lines_of.append("steps of " + ", ".join(f"{n[5:]}: {cell(n)}" for n in of("step")) + _share_of_bandwidth(f, top))
    if of("prompt"):
        rate = (top or {}).get("matrix_flops_per_second")
        each = (f"{n[7:]}: {cell(n, 1)}" + (f" = {f[n]['flops'] / f[n]['seconds'] / rate:.0%}" if rate else "")
                for n in of("prompt"))  # fmt: skip
        lines_of.append("prompts of " + ", ".join(each) + (" of the matrix rate" if rate else ""))
    for name in of("requests"):
        lines_of.append(f"{name}: {f[name]['output_tokens_per_second']:.0f} tok/s out, {cell(name, 0)}")
    if "idle" in f and "graphs" in f["idle"]:
        between, inside = (f["idle"].get(k) for k in ("between_fraction", "inside_fraction"))
        lines_of.append(f"idle between steps {_share(between)}, inside them {_share(inside)}, {f['idle']['graphs']} graphs")
    if starts := [_describe_start(n[6:], v) for n, v in f.items() if n.startswith("start ") and "seconds" in v]:
        lines_of.append("process to first token: " + "; ".join(starts))
    if lines_of and not lines_of[0].startswith(label):
        lines_of[0] = f"{label}: {lines_of[0]}"
    kernels = f.get("idle", {}).get("kernels", ())[:4]
    return lines_of + [f"  {k['share']:6.1%} {k['us']:9.1f} us {k['count']:4d} x {k['kernel'][:60]}" for k in kernels]


def _describe_start(kind: str, start: Mapping[str, Any]) -> str:
    until = ", ".join(f"{point} {at:.1f}" for point, at in sorted(start.get("until", {}).items(), key=lambda p: p[1]))
    return f"{kind} {start['seconds']:.1f} s" + (f" ({until})" if until else "")


def _compare(seconds: float, expected: float, digits: int) -> str:
    """A prediction, and how far from it the figure is, where that is far."""
    from predict import TELLING

    off = seconds / expected - 1
    return f"{expected * 1e3:.{digits}f}" + (f", {off:+.0%} {FAR}" if abs(off) > TELLING else "")


def _share_of_bandwidth(f: Mapping[str, Any], top: Mapping[str, Any] | None) -> str:
    if not top or "step 1" not in f or "token_bytes" not in f.get("open", {}):
        return ""
    share = f["open"]["token_bytes"] / f["step 1"]["seconds"] / top["bandwidth"]
    return f"; one sequence reads its weights at {share:.0%} of bandwidth"


def _share(x: float | None) -> str:
    return "unknown" if x is None else f"{x:.1%}"


def _sweep(f: Mapping[str, Any]) -> list[str]:
    return list(f.get("lines", ()))


def _tiles(f: Mapping[str, Any]) -> list[str]:
    rates = ", ".join(f"{n}: {r:.2f}" for n, r in f.get("ratio", {}).items())
    slower = [n for n, r in f.get("ratio", {}).items() if r < 1]
    same = "the same greedy tokens" if f.get("same_tokens") else "OTHER GREEDY TOKENS"
    verdict = f'slower in {", ".join(slower)}: weigh {{"row_tiles": false}}' if slower else "never slower"
    return [f"tiles by rows and one tile, above 1 = faster: {rates}", f"{same}, {verdict}"] if rates else []


def _load(f: Mapping[str, Any]) -> list[str]:
    plain = f.get("plain_bytes_per_second", 0)
    rates = ", ".join(f"{n}: {r / 1e9:.1f} GB/s" for n, r in f.get("readers", {}).items())
    return [f"weights by so many readers: {rates}; a plain read {plain / 1e9:.1f} GB/s"] if rates else []


def _sanitizer(f: Mapping[str, Any]) -> list[str]:
    return ["; ".join(f"{n}: {r['errors']} errors, exit {r['exit']}" for n, r in f.items())]


def _ncu(f: Mapping[str, Any]) -> list[str]:
    names = ("memory_percent", "l2_percent", "sm_percent", "issue_percent")
    return [
        f"{n}: error: {r['error']}" if "error" in r else
        f"{n}: {r['microseconds'] or 0:.1f} us; " + ", ".join(f"{k[:-8]} {r[k]:.0f} %" for k in names if r.get(k) is not None)
        for n, r in f.items()
    ]  # fmt: skip


KINDS = {"smoke": _smoke, "rows": _rows_test, "checks": _checks, "kit": _tests, "tests": _tests, "sweep": _sweep,
         "products": _sweep, "tiles": _tiles, "load": _load, "sanitizer": _sanitizer, "ncu": _ncu}  # fmt: skip
"""By how a part's name begins."""
