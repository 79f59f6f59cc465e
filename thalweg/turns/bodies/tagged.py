"""Arguments between tags: keys, and values as bare text that the tool's schema gives a type."""

from __future__ import annotations

import json
from typing import Any

from thalweg.turns.bodies.body import WHITE, Body, Sink
from thalweg.turns.bodies.elements import element_value
from thalweg.turns.bodies.schema import must_be_string, property_of, value_of
from thalweg.turns.format import Tagged, Value


class Tags(Body):
    """The arguments of a call that has begun."""

    def __init__(self, sink: Sink, row: Tagged, parameters: Any, in_key: bool) -> None:
        """parameters: the tool's schema. in_key: the first `key_open` is read."""
        self._sink, self._row, self._parameters = sink, row, parameters
        self._ends: dict[str, Value | None] = dict(row.key_close)
        self._kind: Value | None = None
        self._schema: Any = None
        self._first = True
        self._buffer: list[str] = []
        self._stream = False
        self._begin_key() if in_key else self._between()

    def _between(self) -> None:
        self._state, self.own, self.open = "between", (self._row.key_open,), True

    def _begin_key(self) -> None:
        self._buffer = []
        self._state, self.own, self.open = "key", tuple(self._ends), True

    def _begin_value(self) -> None:
        row, close = self._row, self._row.value_close
        if row.nested:
            close += self._key + ">"
        ends = [close, row.quote[1] + close] if row.quote[1] else [close]
        if row.newline:
            ends += ["\n" + e for e in ends]
        self._state, self.own, self.open = "value", tuple(ends), False
        self._buffer = []
        self._lead = True

    @property
    def stops(self) -> str | None:  # type: ignore[override]
        return "" if self._state == "value" and not self._lead else None

    def run(self, text: str) -> None:
        if self._stream:
            self._sink.args(_inside(text))
        else:
            self._buffer.append(text)

    def text(self, c: str) -> None:
        if self._state == "value":
            self._value(c)
        elif self._state == "key":
            self._buffer.append(c)
        elif c not in WHITE:
            self._sink.stray(c)

    def _value(self, c: str) -> None:
        if self._lead:
            if c == "\n" and self._row.newline:
                self._lead = False
                return
            quote = self._row.quote[0]
            if quote and quote.startswith("".join(self._buffer) + c):
                self._buffer.append(c)
                if len(self._buffer) == len(quote):
                    self._buffer, self._lead = [], False
                return
            self._lead = False
            if self._stream and self._buffer:
                self._sink.args(_inside("".join(self._buffer)))
                self._buffer = []
        self.run(c)

    def hit(self, terminal: str) -> None:
        if self._state == "between":
            self._begin_key()
        elif self._state == "key":
            self._key = "".join(self._buffer).strip(WHITE)
            if self._row.nested and self._key.startswith("/"):  # the call's own closing tag
                self.finish()
                return
            self._kind = self._ends[terminal]
            if self._row.value_open:
                self._state, self.own = "before", (self._row.value_open,)
            else:
                self._open_value()
        elif self._state == "before":
            self._open_value()
        else:
            self._close_value()
            self._between()

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
        elif self._row.nested:
            self._sink.args(element_value(text, self._schema, self._row.key_open, self._row.value_close))
        else:
            schema = {"type": ["number", "boolean", "object", "array", "null"]} if self._kind == "json" else self._schema
            self._sink.args(value_of(text, schema))

    def finish(self) -> None:
        if self._state == "value":
            self._close_value()
        self._sink.args("{}" if self._first else "}")
        self._sink.end()


def _inside(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
