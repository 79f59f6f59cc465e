"""`thalweg models [NAME]`: the architectures that are served. Loads no framework."""

from __future__ import annotations

from typing import Any

import orjson

from thalweg.cli.flags import Parser
from thalweg.engine.planning.served import listing


def run(words: list[str]) -> int:
    parser = Parser(prog="thalweg models", description="The architectures (config.json) that this version serves.")
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="a part of an architecture's name, or a word of its description"
    )
    parser.add_argument("--json", action="store_true", help="machine-readable")
    args = parser.parse_args(words)
    word = (args.name or "").lower()
    rows = [r for r in listing() if word in f"{r['architecture']} {r['family']} {r['what']}".lower()]
    if not rows:
        parser.error(f"NAME: nothing here has {args.name!r:.80} in its name or description; thalweg models lists all")
    print(orjson.dumps(rows, option=orjson.OPT_INDENT_2).decode() if args.json else table(rows))
    return 0


def table(rows: list[dict[str, Any]]) -> str:
    width = max(len(r["architecture"]) for r in rows)
    lines = [f"{r['architecture']:{width}}  {r['what']}" for r in rows]
    return "\n".join(
        [*lines, "", f"{len(rows)} architectures. Those that end in ForCausalLM also as ...Model (vectors) and classifiers."]
    )
