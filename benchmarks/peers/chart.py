"""Reports as one picture: thalweg's ratio to each peer, figure by figure, as SVG.

A ratio belongs to one report, as in `table`. Where several reports hold the same comparison, the latest counts; of peak
memory, which depends on what was run, the lowest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

from benchmarks.peers.table import ratios

MEMORY = "peak_rss_mib"
NAMES = {"vllm": "vLLM", "llamacpp": "llama.cpp", "openvino": "OpenVINO"}
"""A column each, in this order."""
FIGURES = {
    "ttft_s": "first token, prompt of 512",
    "decode_tok_s": "decode, 1 stream",
    "prefill_tok_s": "prefill, prompt of 2,048",
    "streams16_tok_s": "16 streams",
    "streams32_tok_s": "32 streams",
    "mixed_tok_s": "24 of mixed lengths",
    "shared_warm_s": "16 cached prefixes",
    "start_s": "start to first token",
    MEMORY: "peak memory, lowest",
}
"""Figures shown, in this order. Left out: the time to load (part of the start) and the first of the shared prompts."""
WIDTH, COLUMN, ROW, LABEL, MARGIN = 960, 310, 20, 150, 20
SCALE = 26.0
"""Pixels for a ratio of 1."""
AHEAD, BEHIND, INK, FAINT = "#1f6f8b", "#c8641b", "#1c1c1c", "#6b6b6b"


class Panel(NamedTuple):
    """One peer on weights of one width. bars: ratio by figure; above 1, thalweg is ahead."""

    peer: str
    weights: str
    bars: dict[str, float]

    @property
    def height(self) -> int:
        return ROW * (len(self.bars) + 2)


def panels(reports: Sequence[dict[str, Any]]) -> list[Panel]:
    """The ratio of every figure that counts, of plain thalweg to the peers of NAMES."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for report in sorted(reports, key=lambda r: str(r["date"])):
        for r in ratios(report):
            if r["ours"] == "thalweg" and r["peer"] in NAMES:
                cells = found.setdefault((r["peer"], r["weights"]), {})
                lowest = [c[MEMORY] for c in (cells, r["cells"]) if MEMORY in c]
                cells |= r["cells"] | ({MEMORY: min(lowest)} if lowest else {})
    order = [(peer, form) for peer in NAMES for form in ("bf16", "int8", "int4") if (peer, form) in found]
    return [Panel(*key, {f: found[key][f] for f in FIGURES if f in found[key]}) for key in order]


def svg(reports: Sequence[dict[str, Any]]) -> str:
    """The picture. ValueError where reports differ in machine or model, whose ratios do not belong side by side."""
    where = {(r["machine"]["processor"], len(r["cores"]), r["shape"], r["layers"], r["scale"]) for r in reports}
    if len(where) != 1:
        raise ValueError(f"one machine and one shape at full length make a chart, not {sorted(map(str, where))}")
    processor, cores, shape, *_ = where.pop()
    columns = [[p for p in panels(reports) if p.peer == peer] for peer in NAMES]
    top = 64
    bottom = top + max(sum(p.height for p in column) for column in columns)
    lines = [
        _text(MARGIN, 26, "thalweg beside other engines: ratio on weights of the same width", size=16, weight=600),
        _text(MARGIN, 46, "Right of the dashed line (1.0) thalweg is ahead: faster, or with less memory.", colour=FAINT),
    ]
    for i, column in enumerate(columns):
        y = top
        for panel in column:
            lines += _panel(panel, MARGIN + i * COLUMN, y)
            y += panel.height
    dates = sorted(str(r["date"])[:10] for r in reports)
    foot = (
        f"{shape} shape, random weights; {processor}, {cores} cores; {dates[0]} to {dates[-1]}; latest report of each figure."
    )
    lines.append(_text(MARGIN, bottom + 8, foot, size=11, colour=FAINT))
    height = bottom + 22
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'font-family="system-ui, sans-serif">\n'
        f'<rect width="{WIDTH}" height="{height}" rx="6" fill="#ffffff"/>\n' + "\n".join(lines) + "\n</svg>\n"
    )


def _panel(panel: Panel, x: int, y: int) -> list[str]:
    zero = x + LABEL
    lines = [_text(x, y + 14, f"{NAMES[panel.peer]}, {panel.weights}", weight=600)]
    for i, (figure, ratio) in enumerate(panel.bars.items()):
        line = y + ROW * (i + 1)
        width, colour = ratio * SCALE, AHEAD if ratio >= 1 else BEHIND
        lines += [
            _text(zero - 8, line + 14, FIGURES[figure], size=11, anchor="end"),
            f'<rect x="{zero}" y="{line + 3}" width="{width:.1f}" height="{ROW - 6}" fill="{colour}"/>',
            _text(zero + width + 5, line + 14, f"{ratio:.2f}", size=11),
        ]
    at, end = zero + SCALE, y + ROW * (len(panel.bars) + 1)
    return [*lines, f'<path d="M{at:.1f} {y + ROW}V{end}" stroke="{INK}" stroke-dasharray="3 3" fill="none"/>']


def _text(
    x: float, y: float, words: str, *, size: int = 13, weight: int = 400, colour: str = INK, anchor: str = "start"
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" fill="{colour}" '
        f'text-anchor="{anchor}">{escape(words)}</text>'
    )
