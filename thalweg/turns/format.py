"""The row of the table: how one family of models writes a turn. Data alone.

A turn is reasoning, content and tool calls. A terminal is a string that stands between them. One that is a token of the
vocabulary counts only as that token (`bind`), so text that merely spells it stays text.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

Value = Literal["string", "json"]
"""How the text of an argument is meant: as it stands, or as JSON."""
Slot = Literal["name", "id", "args", "key"]
"""What follows a terminal in the head of a call. "key": the arguments, and the first key of them has begun."""


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Reasoning between two terminals."""

    open: str = "<think>"
    close: str = "</think>"
    also: tuple[str, ...] = ()
    """Other spellings of `open`."""
    implicit_ends: bool = False
    """A call ends it too."""
    assumed: bool = False
    """A turn begins with it, whatever the prompt ends in, unless that ends in `close`."""
    kept: bool = False
    """It is part of the content, terminals and all."""
    around: str = ""
    """Written after `open` and before `close`. The reader drops any white space there."""
    after: str = ""
    """Written after `close`."""


@dataclass(frozen=True, slots=True)
class Header:
    """Turns in messages, each with a header that says what its body is."""

    open: str
    end: str
    """What begins the body."""
    closes: tuple[str, ...]
    """What ends a body."""
    reasoning: str
    """Occurs in the headers of reasoning."""
    content: str
    """Written into the header of content."""
    call: str = ""
    """What stands before the name in the header of a call, whose body is JSON. "": calls are in bodies."""
    inside: tuple[str, ...] = ()
    """Tokens that occur within headers."""
    role: str = "assistant"


@dataclass(frozen=True, slots=True)
class JsonCalls:
    """Calls as JSON objects that hold their name: one, several, or an array of them."""

    names: tuple[str, ...] = ("name",)
    args: tuple[str, ...] = ("arguments", "parameters")
    ids: tuple[str, ...] = ("id",)
    array: bool = False
    """The writer makes an array of them."""
    keyed: bool = False
    """{name: arguments}."""
    id_first: bool = False
    """The writer gives the id, and before the name."""


@dataclass(frozen=True, slots=True)
class JsonArgs:
    """Arguments as a JSON object, passed on verbatim."""


@dataclass(frozen=True, slots=True)
class TaggedArgs:
    """Arguments as keys and values between tags: `key_open` KEY `key_close` `value_open` VALUE `value_close`."""

    key_open: str
    key_close: tuple[tuple[str, Value | None], ...]
    """What ends a key, and how its value is meant. None: as the tool's schema says."""
    value_close: str
    value_open: str = ""
    newline: bool = False
    """One newline on each side of a value is not part of it."""
    quote: tuple[str, str] = ("", "")
    """Terminals right inside a value that are not part of it."""
    between: str = ""
    """Written between `key_close` and `value_open`."""
    after: str = ""
    """Written after each argument."""
    nested: bool = False
    """Objects and lists are written in tags too. `value_close` ends in the key and ">"."""


@dataclass(frozen=True, slots=True)
class PythonCalls:
    """Calls as in Python: name(key=literal, ...), in a list or one a line."""

    list: bool = True


@dataclass(frozen=True, slots=True)
class GemmaArgs:
    """Arguments as {key:value}, keys bare, strings between `quote`."""

    quote: str = '<|"|>'


Body = JsonCalls | JsonArgs | TaggedArgs | PythonCalls | GemmaArgs


@dataclass(frozen=True, slots=True)
class CallHead:
    """What stands between a call's `open` and its arguments: slots, each begun by a terminal."""

    first: Slot = "name"
    then: tuple[tuple[str, Slot], ...] = ()
    """Terminals, and what they begin."""
    name_in_id: tuple[str, str] = ("", "")
    """The name is the part of the id between these."""
    skip: tuple[str, ...] = ()
    """Optional terminals of the head that mean nothing."""
    or_json: bool = False
    """JSON that holds its name may stand in place of it all."""


@dataclass(frozen=True, slots=True)
class Calls:
    """How tools are called."""

    name: str
    body: Body
    open: str = ""
    close: str = ""
    also: tuple[str, ...] = ()
    """Other spellings of `open`."""
    head: CallHead | None = None
    section: tuple[str, str] = ("", "")
    """Around the calls."""
    bare: bool = False
    """A turn that begins as a call does is one, without `open`."""
    separator: str = ""
    """Written between calls, and skipped there."""
    lead: str = ""
    """White space that the writer puts before the first call, if content is before it."""
    around: str = ""
    """White space inside `open` and `close`."""
    section_around: str = ""
    markers: tuple[str, ...] = ()
    """Texts of a chat template that say that it is written for this format."""
    ids: Literal["random", "indexed", "nine"] = "random"
    """Ids for calls that come without one: chatcmpl-tool-..., functions.NAME:INDEX, or nine letters and digits."""
    wrap: tuple[str, ...] = ()
    """Terminals around content, dropped."""
    header: Header | None = None

    @property
    def opening(self) -> str:
        """What the writer opens a call with."""
        return self.open or (self.also[0] if self.also and not self.bare else "")

    @property
    def beginning(self) -> str:
        """What the writer begins calls with."""
        return self.section[0] or self.opening


@dataclass(frozen=True, slots=True)
class TurnFormat:
    """The format of a model's turns. Without calls or reasoning: those are content."""

    reasoning: Reasoning | None = None
    calls: Calls | None = None
    wrap: tuple[str, ...] = ()
    header: Header | None = None
    source: str = field(default="flag", compare=False)
    """Where it was found, for people."""

    def without_calls(self) -> TurnFormat:
        """For requests without tools."""
        keep = self.calls.wrap if self.calls else ()
        return replace(self, calls=None, wrap=self.wrap + keep, header=self.headers)

    @property
    def headers(self) -> Header | None:
        return self.header or (self.calls.header if self.calls else None)

    @property
    def wraps(self) -> tuple[str, ...]:
        return self.wrap + (self.calls.wrap if self.calls else ())
