"""Flags, derived from the fields of settings classes and their options, and the check of whole settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec

from thalweg.errors import ConfigError
from thalweg.options.option import Option
from thalweg.options.values import READERS

_KINDS = {bool: "bool", int: "int", float: "float", str: "str", list: "list", dict: "json"}


@dataclass(frozen=True, slots=True, eq=False)
class Flag:
    """A flag of the command line, honoured or not. `fields_of` derives those of a settings class."""

    dest: str
    """The name of its field."""
    default: Any
    option: Option
    type: Any = str
    """Of its field, without Annotated."""
    refusal: str = ""
    """Why it is unsupported, and the alternative. "": it is supported."""
    anyway: str = ""
    """Why its value has no effect. "": it has one."""
    same: tuple[str, ...] = ()
    """Values of an unsupported flag that match this version's behaviour, besides its default."""

    @property
    def name(self) -> str:
        """Without dashes in front."""
        return self.dest.replace("_", "-")

    @property
    def spellings(self) -> list[str]:
        return [f"--{self.name}", *self.option.aliases]

    @property
    def is_supported(self) -> bool:
        """Does this version do what the flag asks?"""
        return not self.refusal

    @property
    def kind(self) -> str:
        """How its values are written: a key of `values.READERS`."""
        return self.option.kind or ("choice" if self.option.choices else _KINDS[get_origin(self._types[0]) or self._types[0]])

    @property
    def bare(self) -> bool:
        """May a flag that has values be given without one?"""
        return not self.is_supported or (bool in self._types and self.kind != "bool")

    def value(self, word: str) -> Any:
        """The value of a word of the command line. ValueError describes the problem."""
        option, kind = self.option, self.kind
        if word in ("None", "") and (option.none or (self.default is None and kind not in ("list", "json", "choice"))):
            return None
        items = "int" if kind == "list" and get_args(self._types[0]) == (int,) else kind
        value = (option.read or READERS[items])(word)
        if self.is_supported and option.choices and (problems := list(option.problems(value))):
            raise ValueError(problems[0])
        return value

    @property
    def _types(self) -> tuple[Any, ...]:
        """The members of its type, None left out."""
        union = get_origin(self.type) in (Union, UnionType)
        return tuple(t for t in get_args(self.type) if t is not NoneType) if union else (self.type,)


@cache
def fields_of(settings: type[msgspec.Struct]) -> dict[str, Flag]:
    """The flags of a settings class by field. TypeError: a field declares no option."""
    found = {}
    for f in msgspec.structs.fields(settings):
        option = next((o for o in get_args(f.type)[1:] if isinstance(o, Option)), None)
        if get_origin(f.type) is not Annotated or option is None:
            raise TypeError(f"{settings.__name__}.{f.name} declares no Option (docs/adding-a-flag.md)")
        default = f.default if f.default_factory is msgspec.NODEFAULT else f.default_factory()
        found[f.name] = Flag(f.name, default, option, get_args(f.type)[0])
    return found


def spell(field: str) -> str:
    """The flag of a field, as it is written on the command line."""
    return f"--{field.replace('_', '-')}"


def convert(settings: type[msgspec.Struct], values: Mapping[str, Any], name: Callable[[str], str]) -> dict[str, Any]:
    """The values as the types of their fields. ConfigError lists each of a wrong type. `name`: how errors write a field."""
    flags, converted, problems = fields_of(settings), {}, []
    for field, value in values.items():
        try:
            converted[field] = msgspec.convert(value, flags[field].type)
        except msgspec.ValidationError as e:
            problems.append(f"{name(field)}: {e}")
    if problems:
        raise ConfigError(*problems)
    return converted


def check(settings: msgspec.Struct, say: Callable[[str, str], str]) -> None:
    """Check every field by its option, then every rule in RULES of the class and its bases. ConfigError lists all problems.
    `say`: joins a field and the words about it."""
    kind = type(settings)
    problems = [say(name, p) for name, f in fields_of(kind).items() for p in f.option.problems(getattr(settings, name))]
    for rule in (rule for base in reversed(kind.__mro__) for rule in vars(base).get("RULES", ())):
        try:
            problems += rule(settings)
        except ConfigError as e:
            problems += e.problems
        except TypeError:
            if not problems:  # otherwise a field has a value of a wrong type, and its problem is listed
                raise
    if problems:
        raise ConfigError(*problems)
