"""`thalweg models [NAME]`: the architectures that are served. Loads no framework."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any

import orjson

from thalweg.cli.flags import Parser
from thalweg.models import registry


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


def listing() -> list[dict[str, Any]]:
    """By name: the architecture, the function that reads its configuration, and what its file says of it first."""
    return [
        {"architecture": name, "family": where.rpartition(".")[2], "what": _said(where.partition(":")[0])}
        for name, where in sorted(registry.served().items(), key=lambda item: item[0].lower())
    ]


def _said(module: str) -> str:
    """The first sentence of a module, on one line."""
    return " ".join((inspect.getdoc(import_module(module)) or "").split()).partition(". ")[0].removesuffix(".")


def table(rows: list[dict[str, Any]]) -> str:
    width = max(len(r["architecture"]) for r in rows)
    lines = [f"{r['architecture']:{width}}  {r['what']}" for r in rows]
    return "\n".join(
        [*lines, "", f"{len(rows)} architectures. Those that end in ForCausalLM also as ...Model (vectors) and classifiers."]
    )
