"""The table at the end of `ci/gpu/run`: a line or a few per part, of what its figures say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LINES = 44
WIDTH = 170


def table(summary: Mapping[str, Any]) -> str:
    """At most LINES lines, the first of every part among them; what does not fit is in summary.json, as the last one says."""
    parts: Mapping[str, Any] = summary["parts"]
    asked = {name: shows(name, p) for name, p in parts.items() if p.get("why") != "not asked for"}
    end = [f"{summary.get('seconds', 0):.0f} s in all"]
    if before := summary.get("seconds_before"):
        end[0] += f", {before:.0f} s in the runs before"
    if cache := summary.get("triton_cache"):
        end.insert(0, f"Triton cache: {cache['kernels_before']} kernels before, {cache.get('kernels_after', '?')} after")
    if idle := [name for name in parts if name not in asked]:
        end.insert(0, f"not asked for: {', '.join(idle)}")
    longest = max((len(told) for told in asked.values()), default=0)
    for most in range(longest, 0, -1):  # each part's last lines go first
        body = [line for name, told in asked.items() for line in _rows(name, parts[name], told[:most])]
        left_out = sum(max(0, len(told) - most) for told in asked.values())
        if 2 + len(body) + len(end) <= LINES or most == 1:
            break
    else:
        body, left_out = [], 0
    head = f"{'part':24} {'state':8} {'s':>5}  what it shows"
    more = [f"({left_out} more lines in summary.json)"] if left_out else []
    return "\n".join(line[:WIDTH].rstrip() for line in [head, *body, *more, *end])


def _rows(name: str, part: Mapping[str, Any], told: list[str]) -> list[str]:
    first = f"{name:24} {part['state']:8} {part.get('seconds', 0):5.0f}  {told[0] if told else ''}"
    return [first, *(f"{'':41}{line}" for line in told[1:])]


def shows(name: str, part: Mapping[str, Any]) -> list[str]:
    """What a part found, in a few short lines."""
    figures = part.get("figures")
    if "why" in part:
        return [part["why"]]
    if not isinstance(figures, Mapping):
        return [f"exit {part['exit']}; see {part['log']}"] if part.get("exit") else []
    if "why" in figures:
        return [figures["why"]]
    for kind, say in KINDS.items():
        if name.startswith(kind):
            return say(figures)
    return []


def _smoke(f: Mapping[str, Any]) -> list[str]:
    steps = f.get("steps", {})
    probe, top = steps.get("probe", {}), steps.get("ceilings", {})
    wrong = [n for n, s in steps.items() if not s.get("holds", True)]
    warned = [w for s in steps.values() for w in s.get("warned", ())]
    out = [f"{probe.get('name', '?')}, torch {probe.get('torch', '?')}, triton {probe.get('triton', '?')}"]
    if "bandwidth" in top:
        read, copied = (top[f"{k}_bytes_per_second"] / 1e9 for k in ("read", "copy"))
        out.append(f"reads {read:.0f} GB/s, copies {copied:.0f} GB/s, "
                   f"multiplies {top['matrix_flops_per_second'] / 1e12:.2f} TFLOP/s")  # fmt: skip
    out.append(f"WRONG: {', '.join(wrong)}" if wrong else f"{', '.join(steps)}: hold")
    return out + [f"warned: {w}" for w in warned[:2]]


def _checks(f: Mapping[str, Any]) -> list[str]:
    words = {True: "holds", False: "DOES NOT HOLD", None: "does not apply"}
    return [", ".join(f"{n} {words[c['holds']]}" for n, c in f.get("checks", {}).items())]


def _tests(f: Mapping[str, Any]) -> list[str]:
    said = [f"{f['passed']} passed, {f['failed']} failed, {f['skipped']} skipped"]
    return said + list(f["failures"][:3])


def _measure(f: Mapping[str, Any]) -> list[str]:
    return [line for figures in f.get("shapes", {}).values() for line in shape_lines(figures)]


def shape_lines(f: Mapping[str, Any]) -> list[str]:
    """A shape's figures in words, as far as they go."""
    said = []
    if d := f.get("decode"):
        said.append(f"decode {d['tokens_per_second']:.1f} tok/s = {d['bandwidth_fraction']:.1%} of bandwidth")
    if i := f.get("idle"):
        between, inside = (i.get(k) for k in ("between_fraction", "inside_fraction"))
        said.append(f"idle between steps {_share(between)}, inside them {_share(inside)}, {i['graphs']} graphs")
    if s := f.get("steps"):
        said.append("steps of " + ", ".join(f"{n}: {v['seconds'] * 1e3:.2f} ms" for n, v in s.items()))
    if p := f.get("prefill"):
        each = (f"{n}: {v['seconds'] * 1e3:.1f} ms = {v['matrix_rate_fraction']:.1%}" for n, v in p.items())
        said.append("prompts of " + ", ".join(each) + " of the matrix rate")
    if t := f.get("thousand"):
        said.append(f"{t['requests']} requests of {t['prompt_tokens']} + {t['output_tokens']}: "
                    f"{t['output_tokens_per_second']:.0f} tok/s out")  # fmt: skip
    starts = [
        f"{k[6:-8]} {f[k]:.1f} s" for k in ("start_cold_seconds", "start_warm_seconds", "start_carried_seconds") if k in f
    ]
    if starts:
        said.append("process to first token: " + ", ".join(starts))
    if "error" in f:
        said.insert(0, f"error: {f['error']}")
    kernels = f.get("idle", {}).get("kernels", ())[:4]
    return said + [f"  {k['share']:6.1%} {k['us']:9.1f} us {k['count']:4d} x {k['kernel'][:60]}" for k in kernels]


def _share(x: float | None) -> str:
    return "unknown" if x is None else f"{x:.1%}"


def _sweep(f: Mapping[str, Any]) -> list[str]:
    return list(f.get("lines", ()))


def _tiles(f: Mapping[str, Any]) -> list[str]:
    rates = ", ".join(f"{n}: {r:.2f}" for n, r in f.get("ratio", {}).items())
    slower = [n for n, r in f.get("ratio", {}).items() if r < 1]
    same = "the same greedy tokens" if f.get("same_tokens") else "OTHER GREEDY TOKENS"
    verdict = f'slower in {", ".join(slower)}: weigh {{"row_tiles": false}}' if slower else "never slower"
    return [f"tiles by rows beside one tile, above 1 = faster: {rates}", f"{same}, {verdict}"] if rates else []


def _load(f: Mapping[str, Any]) -> list[str]:
    plain = f.get("plain_bytes_per_second", 0)
    rates = ", ".join(f"{n}: {r / 1e9:.1f} GB/s" for n, r in f.get("readers", {}).items())
    return [f"weights by so many readers: {rates}; a plain read {plain / 1e9:.1f} GB/s"] if rates else []


def _sanitizer(f: Mapping[str, Any]) -> list[str]:
    return ["; ".join(f"{n}: {r['errors']} errors, exit {r['exit']}" for n, r in f.items())]


KINDS = {"smoke": _smoke, "checks": _checks, "kit": _tests, "tests": _tests, "measure": _measure, "sweep": _sweep,
         "tiles": _tiles, "load": _load, "sanitizer": _sanitizer}  # fmt: skip
"""By how a part's name begins."""
