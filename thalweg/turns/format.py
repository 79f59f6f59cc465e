"""The row of the table: the turn format of one family of models, as plain data.

A turn is reasoning, content and tool calls. A terminal is a string that separates them. A terminal in the vocabulary
matches only as that token (`bind`), and text that merely spells it stays text.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

Value = Literal["string", "json"]
"""Type of an argument's text: a verbatim string, or JSON."""
Slot = Literal["name", "id", "args", "key"]
"""The part of a call that follows a terminal of its head. "key": the arguments, with the first key already begun."""


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Reasoning between two terminals."""

    open: str = "<think>"
    close: str = "</think>"
    also: tuple[str, ...] = ()
    """Other spellings of `open`."""
    implicit_ends: bool = False
    """A call ends the reasoning too."""
    assumed: bool = False
    """Every turn begins with reasoning, unless the prompt ends in `close`."""
    kept: bool = False
    """Reasoning is part of the content, with its terminals."""
    around: str = ""
    """Written after `open` and before `close`. The reader drops any white space there."""
    after: str = ""
    """Written after `close`."""


@dataclass(frozen=True, slots=True)
class Header:
    """Turns made of messages. A message's header gives the kind of its body."""

    open: str
    end: str
    """Terminal at the end of a header, before the body."""
    closes: tuple[str, ...]
    """Terminals that end a body."""
    reasoning: str
    """Occurs in the headers of reasoning."""
    content: str
    """Written into the header of content."""
    call: str = ""
    """Text before the name in the header of a call with a JSON body. "": calls are in bodies."""
    inside: tuple[str, ...] = ()
    """Tokens that occur within headers."""
    role: str = "assistant"


@dataclass(frozen=True, slots=True)
class JsonCalls:
    """Calls as JSON objects with a member for the name: one, several, or an array."""

    names: tuple[str, ...] = ("name",)
    args: tuple[str, ...] = ("arguments", "parameters")
    ids: tuple[str, ...] = ("id",)
    array: bool = False
    """The writer puts the calls in an array."""
    keyed: bool = False
    """{name: arguments}."""
    id_first: bool = False
    """The writer writes the id, before the name."""


@dataclass(frozen=True, slots=True)
class JsonArgs:
    """Arguments as a JSON object, passed on verbatim."""


@dataclass(frozen=True, slots=True)
class TaggedArgs:
    """Arguments as keys and values between tags: `key_open` KEY `key_close` `value_open` VALUE `value_close`."""

    key_open: str
    key_close: tuple[tuple[str, Value | None], ...]
    """(terminal that ends a key, type of the value). None: the tool's schema gives the type."""
    value_close: str
    value_open: str = ""
    newline: bool = False
    """Values exclude one newline on each side."""
    quote: tuple[str, str] = ("", "")
    """Terminals at the beginning and end of a value, excluded from the value."""
    between: str = ""
    """Written between `key_close` and `value_open`."""
    after: str = ""
    """Written after each argument."""
    nested: bool = False
    """Objects and lists are written in tags too. `value_close` ends in the key and ">"."""


@dataclass(frozen=True, slots=True)
class PythonCalls:
    """Calls as in Python: name(key=literal, ...), in a list or one per line."""

    list: bool = True


@dataclass(frozen=True, slots=True)
class GemmaArgs:
    """Arguments as {key:value}, with bare keys and strings between `quote`."""

    quote: str = '<|"|>'


Body = JsonCalls | JsonArgs | TaggedArgs | PythonCalls | GemmaArgs


@dataclass(frozen=True, slots=True)
class CallHead:
    """The text between a call's `open` and its arguments: slots, each after a terminal."""

    first: Slot = "name"
    then: tuple[tuple[str, Slot], ...] = ()
    """(terminal, the slot after it)."""
    name_in_id: tuple[str, str] = ("", "")
    """Text of the id before and after the name. ("", ""): the id does not contain the name."""
    skip: tuple[str, ...] = ()
    """Optional terminals of the head, ignored."""
    or_json: bool = False
    """JSON with the name in it may replace head and arguments."""


@dataclass(frozen=True, slots=True)
class Calls:
    """The format of tool calls."""

    name: str
    body: Body
    open: str = ""
    close: str = ""
    also: tuple[str, ...] = ()
    """Other spellings of `open`."""
    head: CallHead | None = None
    section: tuple[str, str] = ("", "")
    """Terminals around all calls."""
    bare: bool = False
    """A turn that begins like a call is a call, without `open`."""
    separator: str = ""
    """Written between calls, and skipped there."""
    lead: str = ""
    """White space that the writer puts between content and the first call."""
    around: str = ""
    """White space inside `open` and `close`."""
    section_around: str = ""
    markers: tuple[str, ...] = ()
    """Texts in a chat template that identify this format."""
    ids: Literal["random", "indexed", "nine"] = "random"
    """Ids for calls without one: chatcmpl-tool-..., functions.NAME:INDEX, or nine letters and digits."""
    wrap: tuple[str, ...] = ()
    """Terminals around content, dropped."""
    header: Header | None = None

    @property
    def opening(self) -> str:
        """The terminal that the writer opens a call with."""
        return self.open or (self.also[0] if self.also and not self.bare else "")

    @property
    def beginning(self) -> str:
        """The terminal that the writer begins all calls with."""
        return self.section[0] or self.opening


@dataclass(frozen=True, slots=True)
class TurnFormat:
    """The format of a model's turns. calls, reasoning None: the reader treats them as content."""

    reasoning: Reasoning | None = None
    calls: Calls | None = None
    wrap: tuple[str, ...] = ()
    header: Header | None = None
    source: str = field(default="flag", compare=False)
    """Origin of the format, for logs."""

    def without_calls(self) -> TurnFormat:
        """The format for requests without tools."""
        keep = self.calls.wrap if self.calls else ()
        return replace(self, calls=None, wrap=self.wrap + keep, header=self.headers)

    @property
    def headers(self) -> Header | None:
        return self.header or (self.calls.header if self.calls else None)

    @property
    def wraps(self) -> tuple[str, ...]:
        return self.wrap + (self.calls.wrap if self.calls else ())
