"""An option: what a field of a settings class declares about its flag. Everything else about the flag is derived from it.

A settings class is a msgspec struct whose fields read `name: Annotated[type, Option(help, ...)] = default`. The command
line, the configuration file, the checks, vLLM's argument names and docs/flags.md are made of these declarations. Rules
that compare fields are functions in the class's RULES.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec

from thalweg.errors import ConfigError

Rules = tuple[Callable[[Any], Iterable[str]], ...]
"""Functions of a settings object that yield what is wrong with several fields together, naming them. They may also raise
ConfigError. A class lists its own in RULES."""


@dataclass(frozen=True, slots=True, eq=False)
class Option:
    """The facts of a flag, beside the type and the default of its field."""

    help: str
    group: str
    """The heading it has in vLLM's help."""
    tier: str = "core"
    """core: a server on one machine. scale: many devices or machines. specialist: one model or vendor. own: thalweg's own."""
    aliases: tuple[str, ...] = ()
    """Other spellings, with their dashes."""
    kind: str = ""
    """How values are written (`values.READERS`). Empty: by the field's type."""
    read: Callable[[str], Any] | None = None
    """Reads one word of the command line. None: by `kind`. ValueError says in words what is wrong with it."""
    repeats: bool = False
    """Given several times, lists are joined. Otherwise the last one counts."""
    none: bool = False
    """vLLM's default is None, so this word is accepted, and asks for the default."""

    choices: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    """Values of vLLM that are not honoured -> why, and what to do instead."""
    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    """Bounds of a number, as `msgspec.Meta` names them."""
    also: tuple[float, ...] = ()
    """Numbers outside the bounds that are accepted."""
    unit: str = ""
    note: str = ""
    """Added in brackets where a value is refused."""
    check: Callable[[Any], Iterable[str]] | None = None
    """Yields what else is wrong with a value, as `problems` does."""

    def problems(self, value: Any) -> Iterator[str]:
        """What is wrong with a value, in words that follow the name of its field. None is never wrong."""
        if value is None:
            return
        if self.choices:
            if value in self.refused:
                yield f"{value}: {self.refused[value]}"
            elif value not in self.choices:
                yield f"must be one of {', '.join(self.choices)}, not {value!r}{self._noted()}"
        if not self._within(value):
            yield f"must be {self.bounds}{f' {self.unit}' if self.unit else ''}{self._noted()}, not {value}"
        if self.check is not None:
            yield from self.check(value)

    @property
    def bounds(self) -> str:
        """The bounds in words. "": there are none."""
        if self.ge is not None and self.le is not None:
            return f"between {self.ge:.10g} and {self.le:.10g}"
        words = {"at least": self.ge, "above": self.gt, "at most": self.le, "below": self.lt}
        return " and ".join(f"{name} {limit:.10g}" for name, limit in words.items() if limit is not None)

    def _within(self, value: Any) -> bool:
        if value in self.also:
            return True
        return (  # so that NaN is outside
            (self.ge is None or value >= self.ge)
            and (self.gt is None or value > self.gt)
            and (self.le is None or value <= self.le)
            and (self.lt is None or value < self.lt)
        )

    def _noted(self) -> str:
        return f" ({self.note})" if self.note else ""


@dataclass(frozen=True, slots=True)
class OptionField:
    """A field of a settings class, and its option."""

    name: str
    type: Any
    """Without Annotated."""
    default: Any
    option: Option

    @property
    def types(self) -> tuple[Any, ...]:
        """The members of its type, None left out."""
        union = get_origin(self.type) in (Union, UnionType)
        return tuple(t for t in get_args(self.type) if t is not NoneType) if union else (self.type,)

    @property
    def kind(self) -> str:
        """How its values are written: a key of `values.READERS`, or bool."""
        first = get_origin(self.types[0]) or self.types[0]
        by_type = {bool: "bool", int: "int", float: "float", str: "str", list: "list", dict: "json"}
        return self.option.kind or ("choice" if self.option.choices else by_type[first])


@cache
def option_fields(settings: type[msgspec.Struct]) -> dict[str, OptionField]:
    """The fields of a settings class by name. TypeError: one of them declares no option."""
    found = {}
    for f in msgspec.structs.fields(settings):
        option = next((o for o in get_args(f.type)[1:] if isinstance(o, Option)), None)
        if get_origin(f.type) is not Annotated or option is None:
            raise TypeError(f"{settings.__name__}.{f.name} declares no Option (docs/adding-a-flag.md)")
        default = f.default if f.default_factory is msgspec.NODEFAULT else f.default_factory()
        found[f.name] = OptionField(f.name, get_args(f.type)[0], default, option)
    return found


def flag_name(name: str) -> str:
    """The flag of a field, as it is written on the command line."""
    return f"--{name.replace('_', '-')}"


def convert(settings: type[msgspec.Struct], values: Mapping[str, Any], name: Callable[[str], str]) -> dict[str, Any]:
    """The values as the types of their fields. ConfigError lists each of a wrong type. `name`: how errors write a field."""
    fields, converted, problems = option_fields(settings), {}, []
    for field_name, value in values.items():
        try:
            converted[field_name] = msgspec.convert(value, fields[field_name].type)
        except msgspec.ValidationError as e:
            problems.append(f"{name(field_name)}: {e}")
    if problems:
        raise ConfigError(*problems)
    return converted


def check(settings: msgspec.Struct, name: Callable[[str, str], str]) -> None:
    """Check every field by its option, then every rule in RULES of the class and its bases. ConfigError lists all problems.
    `name`: joins the name of a field and the words about it."""
    kind = type(settings)
    problems = [name(f.name, p) for f in option_fields(kind).values() for p in f.option.problems(getattr(settings, f.name))]
    for rule in (rule for base in reversed(kind.__mro__) for rule in vars(base).get("RULES", ())):
        try:
            problems += rule(settings)
        except ConfigError as e:
            problems += e.problems
    if problems:
        raise ConfigError(*problems)
