"""An option: the declaration of a flag on a field of a settings class. Everything else about the flag is derived from it.

A settings class is a msgspec struct with fields `name: Annotated[type, Option(help, ...)] = default`. The command line, the
configuration file, the checks, vLLM's argument names and docs/flags.md are made of these declarations. Rules that compare
fields are functions in the class's RULES.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Rules = tuple[Callable[[Any], Iterable[str]], ...]
"""Functions of a settings object that yield problems between several fields, naming them. They may also raise ConfigError. A
class lists its own in RULES."""


@dataclass(frozen=True, slots=True, eq=False)
class Option:
    """The facts of a flag, besides the type and the default of its field."""

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
    """Reads one word of the command line. None: by `kind`. ValueError describes the problem."""
    repeats: bool = False
    """Given several times, lists are joined. Otherwise the last one counts."""
    none: bool = False
    """vLLM's default is None, so this word is accepted, and asks for the default."""

    choices: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    """Unsupported values of vLLM -> why, and the alternative."""
    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    """Bounds of a number, as `msgspec.Meta` names them."""
    also: tuple[float, ...] = ()
    """Accepted numbers outside the bounds."""
    unit: str = ""
    note: str = ""
    """Added in brackets where a value is refused."""
    check: Callable[[Any], Iterable[str]] | None = None
    """Yields further problems of a value, as `problems` does."""

    def problems(self, value: Any) -> Iterator[str]:
        """Problems of a value, as words to follow the name of its field. None is always valid."""
        if value is None:
            return
        if self.choices:
            if value in self.refused:
                yield f"{value}: {self.refused[value]}"
            elif value not in self.choices:
                yield f"must be one of {', '.join(self.choices)}, not {value!r}{self._note_suffix()}"
        if self.bounds and type(value) not in (int, float):
            yield f"must be a number, not {value!r:.80}"
        elif not self._within(value):
            yield f"must be {self.bounds}{f' {self.unit}' if self.unit else ''}{self._note_suffix()}, not {value}"
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

    def _note_suffix(self) -> str:
        return f" ({self.note})" if self.note else ""
