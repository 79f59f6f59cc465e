"""The table of all flags: those that are declared here, and those of vLLM that are not honoured (assets/flags.json).

Rows of the file are [name, aliases, type, choices, default, group, help, tier, fate], and the defaults are vLLM's. A fate
that is text refuses: it says why, and what to do instead. A fate {"anyway": why} accepts every value, because it asks for
what happens anyway. Flags that vLLM has removed are of two groups. Those of group Removed had no effect any more. Those of
group Replaced asked for something.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, get_args

from thalweg.options.answers import AnswerOptions
from thalweg.options.command import CommandOptions
from thalweg.options.engine import EngineArgs
from thalweg.options.option import OptionField, option_fields
from thalweg.options.values import READERS

REMOVED, REPLACED = "Removed", "Replaced"
GONE = (REMOVED, REPLACED)
TIERS = ("core", "scale", "specialist", "own")
SAME_AS_NOW: dict[str, tuple[str, ...]] = {
    "distributed_executor_backend": ("mp", "uni"),
    "task": ("auto", "generate"),
}
"""Values of flags this version does not have, beside their defaults, that ask for what it does anyway. mp and uni:
one process beside the server."""


@dataclass(frozen=True, slots=True)
class Flag:
    name: str
    aliases: tuple[str, ...]
    type: str
    choices: tuple[str, ...] | None
    default: Any
    group: str
    help: str
    tier: str
    refusal: str = ""
    anyway: str = ""
    """Why its value changes nothing."""
    read: Callable[[str], Any] = str
    """Reads one word of the command line, as it is written. ValueError says in words what is wrong with it."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Values of vLLM that are not honoured -> why, and what to do instead."""
    none: bool = False
    """The word None, or an empty one, leaves it unset."""
    repeats: bool = False
    """Given several times, its lists are joined."""
    bare: bool = False
    """It may be given without a value."""

    @property
    def dest(self) -> str:
        return self.name.replace("-", "_")

    @property
    def options(self) -> list[str]:
        return [f"--{self.name}", *self.aliases]

    @property
    def honoured(self) -> bool:
        """Does this version do what the flag asks?"""
        return not self.refusal

    def value(self, word: str) -> Any:
        """What a word of the command line means. ValueError says in words what is wrong with it."""
        if self.none and word in ("None", ""):
            return None
        value = self.read(word)
        if word in self.refused:
            raise ValueError(f"{word}: {self.refused[word]}")
        if self.type == "choice" and value not in (self.choices or ()):
            raise ValueError(f"{word!r} is not one of {', '.join(self.choices or ())}")
        return value

    def asks_nothing(self, value: Any) -> bool:
        """Does the flag, so given, ask for what happens anyway? Its default says no more than leaving it out."""
        if self.group == REMOVED:
            return False
        if self.type == "bool":
            return bool(value) is bool(self.default)
        if self.type in ("json", "list") and not isinstance(value, str):
            return value is None or value == self.default or (not value and not self.default)
        if self.type == "json":
            return self.default is not None and value.replace(" ", "") == json.dumps(self.default)
        if value == self.default and value is not True:  # the flag without a value is True, and True == 1
            return True
        return str(value) == str(self.default) or str(value) in SAME_AS_NOW.get(self.dest, ())


@cache
def table() -> dict[str, Flag]:
    """Every known flag, by name without dashes in front: those there are by name, then those that are gone."""
    rows = json.loads((files("thalweg") / "assets" / "flags.json").read_text(encoding="utf-8"))
    declared = [f for c in (EngineArgs, AnswerOptions, CommandOptions) for f in option_fields(c).values()]
    flags = [*map(_of_field, declared), *(_of_row(*row) for row in rows)]
    return {f.name: f for f in sorted(flags, key=lambda f: (f.group in GONE, f.name))}


def _of_field(f: OptionField) -> Flag:
    o, kind = f.option, f.kind
    items = READERS["int"] if kind == "list" and get_args(f.types[0]) == (int,) else READERS[kind]
    return Flag(
        f.name.replace("_", "-"), o.aliases, kind, o.choices or None, f.default, o.group, o.help, o.tier,
        read=o.read or items, refused=o.refused, none=o.none or _may_be_none(kind, f.default), repeats=o.repeats,
        bare=bool in f.types and kind != "bool",
    )  # fmt: skip


def _of_row(
    name: str, aliases: list[str], kind: str, choices: list[str] | None, default: Any, group: str, help: str, tier: str,
    fate: str | dict[str, str],
) -> Flag:  # fmt: skip
    refusal, anyway = (fate, "") if isinstance(fate, str) else ("", fate["anyway"])
    return Flag(
        name, tuple(aliases), kind, tuple(choices) if choices else None, default, group, help, tier, refusal, anyway,
        read=READERS[kind], none=_may_be_none(kind, default),
    )  # fmt: skip


def _may_be_none(kind: str, default: Any) -> bool:
    return default is None and kind not in ("list", "json", "choice")
