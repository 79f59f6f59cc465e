"""Arguments between tags: keys, and values as bare text. The tool's schema gives the types."""

from __future__ import annotations

import json
from typing import Any

from thalweg.turns.bodies.body import WHITE, BodyReader, CallSink
from thalweg.turns.bodies.elements import element_value
from thalweg.turns.bodies.json_body import Nesting
from thalweg.turns.bodies.schema import begun_string, must_be_string, property_of, value_of
from thalweg.turns.format import TaggedArgs, Value


class TaggedArgsReader(BodyReader):
    """The arguments of a call that has begun.

    A value's closing terminal is part of the value within a JSON string, and where the text after it cannot follow a value. In
    a call that a grammar constrains, the first one that the grammar allows is the end."""

    def __init__(self, sink: CallSink, row: TaggedArgs, parameters: Any, in_key: bool, held: bool = False) -> None:
        """parameters: the tool's schema. in_key: the first `key_open` is read. held: a grammar constrains the arguments."""
        self._sink, self._row, self._parameters, self._held = sink, row, parameters, held
        self._ends: dict[str, Value | None] = dict(row.key_close)
        self._kind: Value | None = None
        self._schema: Any = None
        self._first = True
        self._buffer: list[str] = []
        self._space: list[str] = []
        self._stream = False
        self._begin_key() if in_key else self._between()

    def _between(self) -> None:
        self._state, self.own, self.open = "between", (self._row.key_open,), True

    def _begin_key(self) -> None:
        self._buffer = []
        self._state, self.own, self.open = "key", tuple(self._ends), True

    def _begin_value(self) -> None:
        row, close = self._row, self._row.value_close
        self._again = ""
        """The opening tag of the same key, nested within the value."""
        if row.nested:
            close += self._key + ">"
            self._again = f"{row.key_open}{self._key}>"
        ends = [close, row.quote[1] + close] if row.quote[1] and not self._held else [close]
        if row.newline:
            ends = ["\n" + e for e in ends] + ([] if self._held else ends)
        self._closes = tuple(ends)
        self._json = Nesting() if self._held and not (self._stream or row.nested) else None
        self._buffer, self._lead, self._depth = [], True, 0
        self._in_value()

    def _in_value(self) -> None:
        self._state, self.open = "value", False
        inside = self._json is not None and self._json.string
        self.own = () if inside and self._held else (*self._closes, *([self._again] if self._again else []))

    @property
    def stops(self) -> str | None:  # type: ignore[override]
        return "" if self._state == "value" and not self._lead and self._json is None else None

    def run(self, text: str) -> None:
        if self._stream:
            self._sink.args(_inside(text))
        else:
            self._buffer.append(text)

    def text(self, c: str) -> None:
        if self._state == "value":
            self._value(c)
        elif self._state == "closed":
            self._after_close(c)
        elif self._state == "key":
            self._buffer.append(c)
        elif c not in WHITE:
            self._sink.stray(c)

    def _value(self, c: str) -> None:
        if self._lead:
            if c == "\n" and self._row.newline:
                self._lead = False
                return
            quote = "" if self._held else self._row.quote[0]
            if quote and quote.startswith("".join(self._buffer) + c):
                self._buffer.append(c)
                if len(self._buffer) == len(quote):
                    self._buffer, self._lead = [], False
                return
            self._lead = False
            if self._stream and self._buffer:
                self._sink.args(_inside("".join(self._buffer)))
                self._buffer = []
        if self._json is None and c in "{[" and not (self._stream or self._row.nested or "".join(self._buffer).strip(WHITE)):
            self._json = Nesting()
        if self._json is not None:
            self._follow(c, self._json)
        self.run(c)

    def _follow(self, c: str, json: Nesting) -> None:
        """A character of a JSON value. JSON strings have no line breaks: with one, the value is not JSON."""
        if json.string and c in "\r\n" and not self._held:
            self._json = None
        else:
            json.take(c)
        self._in_value()

    def _may_end(self, terminal: str) -> None:
        """After a value's closing terminal: the text that follows decides whether it ends the value."""
        self._state, self._seen, self._space = "closed", terminal, []
        self._wait(self._json is None or not self._json.string)

    def _wait(self, outside: bool) -> None:
        """outside: not within a JSON string."""
        follows = (self._row.key_open,) if outside else ()
        self.own, self.open = (*follows, *self._closes), outside

    def _after_close(self, c: str) -> None:
        if c in WHITE:
            self._space.append(c)
            if c in "\r\n" and self._json is not None and self._json.string:
                self._wait(True)
            return
        self._take_back()
        self._in_value()
        self._value(c)

    def _take_back(self) -> None:
        """The closing terminal was text of the value."""
        if self._lead and self._stream and self._buffer:
            self._sink.args(_inside("".join(self._buffer)))
            self._buffer = []
        text, self._lead = self._sink.token_text(self._seen) + "".join(self._space), False
        for c in text:
            if self._json is not None:
                self._follow(c, self._json)
        self.run(text)

    def hit(self, terminal: str) -> None:
        if self._state == "between":
            self._begin_key()
        elif self._state == "key":
            self._end_key(terminal)
        elif self._state == "before":
            self._open_value()
        elif self._state == "closed":
            if terminal in self._closes:
                self._take_back()
                self._may_end(terminal)
            else:
                self._close_value()
                self._begin_key()
        elif terminal == self._again:
            self._depth += 1
            self.run(self._sink.token_text(terminal))
        elif self._depth:
            self._depth -= 1
            self.run(self._sink.token_text(terminal))
        elif self._held:
            self._close_value()
            self._between()
        else:
            self._may_end(terminal)

    def _end_key(self, terminal: str) -> None:
        self._key = "".join(self._buffer).strip(WHITE)
        if self._row.nested and self._key.startswith("/"):  # the call's own closing tag
            self.finish()
            return
        self._kind = self._ends[terminal]
        if self._row.value_open:
            self._state, self.own = "before", (self._row.value_open,)
        else:
            self._open_value()

    def _open_value(self) -> None:
        self._schema = property_of(self._parameters, self._key)
        string = self._kind == "string" or (self._kind is None and must_be_string(self._schema))
        self._stream = string and not self._row.nested
        self._sink.args(("{" if self._first else ", ") + json.dumps(self._key, ensure_ascii=False) + ": ")
        self._first = False
        if self._stream:
            self._sink.args('"')
        self._begin_value()

    def _close_value(self) -> None:
        text = "".join(self._buffer)
        if self._stream:
            self._sink.args((_inside(text) if self._lead else "") + '"')
        else:
            self._sink.args(self._value_of(text))

    def _value_of(self, text: str) -> str:
        """The JSON of a buffered value."""
        if self._row.nested:
            opened, closed = self._sink.token_text(self._row.key_open), self._sink.token_text(self._row.value_close)
            return element_value(text, self._schema, opened, closed, self._parameters)
        return value_of(text, {} if self._kind == "json" else self._schema)

    def _cut_value(self) -> None:
        """The text was cut off within a value. A streamed string stays open."""
        text = "".join(self._buffer)
        if self._stream or self._lead:
            return
        if self._state == "closed":  # the value itself is complete
            self._sink.args(self._value_of(text).removesuffix('"'))
        elif not (self._row.nested and self._sink.token_text(self._row.key_open)[:-1] in text):
            self._sink.args(begun_string(text, {} if self._kind == "json" else self._schema))

    def finish(self, cut: bool = False) -> None:
        if self._state in ("value", "closed"):
            if cut:
                self._cut_value()
            else:
                self._close_value()
        self._sink.args("" if self._first or cut else "}")
        self._sink.end()


def _inside(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
