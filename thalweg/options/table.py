"""The table of all flags: declared ones, and unsupported ones of vLLM (assets/flags.json).

Rows of the file are [name, aliases, kind, choices, default, group, help, tier, fate], and the defaults are vLLM's. A text as
fate refuses: it gives the reason and the alternative. {"refusal": text, "same": [...]} accepts values that match this version's
behaviour, as the default does. {"anyway": why} accepts every value, because none has an effect. Flags removed by vLLM are of
two groups. Those of group Removed no longer had an effect. Those of group Replaced had one.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

from thalweg.options.answers import AnswerOptions
from thalweg.options.command import CommandOptions
from thalweg.options.engine import EngineArgs
from thalweg.options.flag import Flag, fields_of
from thalweg.options.option import Option

REMOVED, REPLACED = "Removed", "Replaced"
GONE = (REMOVED, REPLACED)
TIERS = ("core", "scale", "specialist", "own")


@cache
def table() -> dict[str, Flag]:
    """Every known flag, by name without leading dashes: current flags by name, then removed ones."""
    rows = json.loads((files("thalweg") / "assets" / "flags.json").read_text(encoding="utf-8"))
    flags = [*(f for c in (EngineArgs, AnswerOptions, CommandOptions) for f in fields_of(c).values()), *map(_of_row, rows)]
    return {f.name: f for f in sorted(flags, key=lambda f: (f.option.group in GONE, f.name))}


def _of_row(row: list[Any]) -> Flag:
    name, aliases, kind, choices, default, group, words, tier, fate = row
    option = Option(words, group, tier, tuple(aliases), kind, choices=tuple(choices or ()))
    fate = {"refusal": fate} if isinstance(fate, str) else fate
    same = tuple(fate.get("same", ()))
    return Flag(name.replace("-", "_"), default, option, str, fate.get("refusal", ""), fate.get("anyway", ""), same)


def asks_nothing(flag: Flag, value: Any) -> bool:
    """Does the flag, so given, ask for what happens anyway? Its default says no more than leaving it out."""
    if flag.option.group == REMOVED:
        return False
    if flag.kind == "bool":
        return bool(value) is bool(flag.default)
    if flag.kind in ("json", "list") and not isinstance(value, str):
        return value is None or value == flag.default or (not value and not flag.default)
    if flag.kind == "json":
        return flag.default is not None and value.replace(" ", "") == json.dumps(flag.default)
    if value == flag.default and value is not True:  # the flag without a value is True, and True == 1
        return True
    return str(value) == str(flag.default) or str(value) in flag.same
