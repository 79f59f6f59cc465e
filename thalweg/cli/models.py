"""`thalweg models [NAME]`: the known architectures, how each is served, and why others are not. Loads no framework."""

from __future__ import annotations

import importlib.util
from typing import Any

import orjson

from thalweg.cli.flags import Parser
from thalweg.engine.planning.supported import FATES, counts, known_architectures

ABOUT = """The known architectures (config.json). native: served by a family of thalweg. fallback: served through transformers'
own module, where that library is installed. refused: not served, with the reason."""


def run(words: list[str]) -> int:
    parser = Parser(prog="thalweg models", description=" ".join(ABOUT.split()))
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="a part of an architecture's name, or a word of its description"
    )
    parser.add_argument("--only", choices=FATES, help="only architectures of one fate")
    parser.add_argument("--counts", action="store_true", help="the counts alone")
    parser.add_argument("--json", action="store_true", help="machine-readable")
    args = parser.parse_args(words)
    word = (args.name or "").lower()
    rows = [r for r in known_architectures() if word in f"{r['architecture']} {r['family']} {r['what']}".lower()]
    rows = [r for r in rows if args.only in (None, r["served"])]
    if not rows:
        parser.error(f"NAME: nothing here has {args.name!r:.80} in its name or description; thalweg models lists all")
    if args.json:
        print(orjson.dumps(counts() if args.counts else rows, option=orjson.OPT_INDENT_2).decode())
    else:
        print(summary() if args.counts else f"{table(rows)}\n\n{summary()}")
    return 0


def table(rows: list[dict[str, Any]]) -> str:
    width = max(len(r["architecture"]) for r in rows)
    return "\n".join(f"{r['served']:8}  {r['architecture']:{width}}  {r['what']}" for r in rows)


def summary() -> str:
    """How many of the names that users of vLLM know are served, and how."""
    found = counts()
    there = importlib.util.find_spec("transformers") is not None
    lines = [
        f"{found['native']} native, {found['fallback']} through transformers' own module"
        f"{'' if there else ' (not installed: pip install thalweg[hf])'}, {found['refused']} refused, of {sum(found.values())} "
        "names that users of vLLM know.",
        "Architectures that end in ForCausalLM are native as ...Model (vectors) and classifiers too.",
    ]
    return "\n".join(lines)
