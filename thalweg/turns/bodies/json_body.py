"""JSON bodies: arguments passed on verbatim, and calls as objects with a member for the name."""

from __future__ import annotations

import json

from thalweg.turns.bodies.body import WHITE, BodyReader, CallSink
from thalweg.turns.bodies.literal import HIGH_HALVES
from thalweg.turns.format import JsonCalls

BARE = frozenset("0123456789+-.eEtruefalsnNaITyF")
"""Characters of numbers and words, NaN, Infinity and Python's words among them."""
QUOTES = '"\\'
"""Characters with a meaning within a string."""
NAME_MOST = 4096
"""Characters of a key or name that the reader keeps. Longer ones are not names."""


class Nesting:
    """Depth in objects and lists at a position of a JSON text, and whether it is within a string."""

    __slots__ = ("_escaped", "depth", "string")

    def __init__(self) -> None:
        self.depth, self.string, self._escaped = 0, False, False

    @property
    def inside(self) -> bool:
        """Within a string, and not within an escape."""
        return self.string and not self._escaped

    def take(self, c: str) -> None:
        if self.string:
            if self._escaped:
                self._escaped = False
            elif c == "\\":
                self._escaped = True
            elif c == '"':
                self.string = False
        elif c == '"':
            self.string = True
        elif c in "{[":
            self.depth += 1
        elif c in "}]":
            self.depth -= 1


class JsonArgsReader(BodyReader):
    """Arguments of a call that has begun, passed on verbatim up to their last brace."""

    def __init__(self, sink: CallSink) -> None:
        self._sink, self._at = sink, Nesting()
        self._begun = False
        self._space: list[str] = []

    @property
    def open(self) -> bool:  # type: ignore[override]
        return not self._at.string

    @property
    def stops(self) -> str | None:  # type: ignore[override]
        return QUOTES if self._at.inside else None

    def run(self, text: str) -> None:
        self._sink.args(text)

    def text(self, c: str) -> None:
        if not self._at.string and c in WHITE:
            if self._begun:
                self._space.append(c)
            return
        self._begun = True
        self._at.take(c)
        if self._space:
            self._sink.args("".join(self._space))
            self._space.clear()
        self._sink.args(c)
        if self._at.depth <= 0 and not self._at.string and c in "}]":
            self._sink.end()

    def finish(self, cut: bool = False) -> None:
        self._sink.end()


class JsonCallsReader(BodyReader):
    """Calls with their name in the JSON: an object, or an array of such objects."""

    def __init__(self, sink: CallSink, row: JsonCalls, strict: bool) -> None:
        """strict: the text began without a terminal, and a call without arguments is not a call."""
        self._sink, self._row, self._strict = sink, row, strict
        self._at = Nesting()
        self._array = self._any = False
        self._clear()

    def _clear(self) -> None:
        self._key: str | None = None
        self._is_key = False
        self._word: list[str] | None = None
        self._name, self._id = "", ""
        self._early: list[str] = []
        self._space: list[str] = []
        self._sent_any = self._sent = self._has_args = self._in_args = self._text_args = False
        self._escape = ""

    @property
    def open(self) -> bool:  # type: ignore[override]
        return not self._at.string

    @property
    def stops(self) -> str | None:  # type: ignore[override]
        return QUOTES if self._at.inside and self._in_args and not self._escape else None

    def run(self, text: str) -> None:
        self._argument(text)

    @property
    def _item(self) -> int:
        """Depth within a call's object."""
        return 2 if self._array else 1

    def text(self, c: str) -> None:
        at, was = self._at, self._at.string
        if was:
            at.take(c)
            self._in_string(c, not at.string)
        elif c in WHITE:
            if self._in_args and self._sent_any:
                self._space.append(c)
        elif c in '{}[]:,"' or c in BARE:
            self._structure(c)
        elif self._sent:  # malformed arguments are passed on
            self._argument(c)
        else:
            self._sink.fail()

    def _structure(self, c: str) -> None:
        at = self._at
        before = at.depth
        at.take(c)
        if before == 0:
            if c not in "{[":
                self._sink.fail()
            self._array = c == "["
            self._is_key = c == "{"
        elif self._array and before == 1:
            if c == "{":
                self._is_key = True
            elif c == "]" and self._any:
                self._sink.end()
            elif c != ",":
                self._sink.fail()
        elif before == self._item:
            self._member(c)
        elif self._in_args:
            self._argument(c)

    def _member(self, c: str) -> None:
        """A character directly within a call's object."""
        if c == "}":
            self._in_args = False
            self._space.clear()
            self._close()
        elif c == ",":
            self._in_args = self._text_args = False
            self._space.clear()
            self._is_key, self._key = True, None
        elif c == ":" and not self._in_args:
            self._is_key = False
            if self._row.keyed:
                self._name = self._key or ""
            self._in_args = self._row.keyed or self._key in self._row.args
            if self._in_args:
                self._has_args = True
                if self._name:
                    self._send()
        elif c == '"':
            if self._in_args:
                self._text_args = True
            elif self._is_key or self._key in self._row.names or self._key in self._row.ids:
                self._word = []
        elif self._in_args:
            self._argument(c)

    def _in_string(self, c: str, ended: bool) -> None:
        if self._word is not None:
            if ended:
                self._end_word(_decode_string("".join(self._word)))
            elif len(self._word) < NAME_MOST:
                self._word.append(c)
        elif self._in_args:
            if self._text_args and self._at.depth == self._item:
                if not ended:
                    self._unescape(c)
                elif self._escape:
                    self._end_escape()
            else:
                self._argument(c)

    def _end_word(self, word: str) -> None:
        """A key, name or id is complete."""
        self._word = None
        if self._is_key:
            self._key = word
        elif self._key in self._row.names:
            self._name = word
            if self._has_args:
                self._send()
        else:
            self._id = word

    def _unescape(self, c: str) -> None:
        """Arguments as JSON within a string."""
        if len(self._escape) == 6 and c != "\\":  # half of a pair, and no other half
            self._end_escape()
        elif len(self._escape) == 7 and c != "u":
            self._escape = self._escape[:6]
            self._end_escape()
            self._escape = "\\"
        if not self._escape and c != "\\":
            self._argument(c)
            return
        self._escape += c
        size = len(self._escape)
        if size == 12 or (size == 2 and c != "u") or (size == 6 and self._escape[2:4].lower() not in HIGH_HALVES):
            self._end_escape()

    def _end_escape(self) -> None:
        text, self._escape = self._escape, ""
        self._argument(_decode_string(text))

    def _argument(self, text: str) -> None:
        if self._space:
            text = "".join(self._space) + text
            self._space.clear()
        self._sent_any = True
        if self._sent:
            self._sink.args(text)
        else:
            self._early.append(text)

    def _send(self) -> None:
        if self._sent or not self._sink.commit(self._name, self._id):
            return
        self._sent = True
        for text in self._early:
            self._sink.args(text)
        self._early.clear()

    def _close(self) -> None:
        """The call's object is complete."""
        if (self._strict and not self._has_args) or not self._name:
            self._sink.fail()
            return
        self._send()
        array = self._array
        self._clear()
        self._any = True
        if array:
            self._sink.pause()
        else:
            self._sink.end()

    def finish(self, cut: bool = False) -> None:
        if self._sent or (self._any and self._at.depth == 1):
            self._sink.end()
        elif self._name and not self._strict:
            self._send()
            self._sink.end()
        else:
            self._sink.fail()


def _decode_string(raw: str) -> str:
    """Decodes the inside of a JSON string. Lone surrogates, which text cannot contain, become U+FFFD."""
    try:
        return str(json.loads(f'"{raw}"', strict=False)).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    except ValueError:
        return raw
