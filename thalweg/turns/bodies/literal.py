"""Rewrites literals close to JSON as JSON while they are read: Python's, and Gemma's with bare keys."""

from __future__ import annotations

import json

from thalweg.turns.bodies.body import WHITE, BodyReader, CallSink

WORDS = {"True": "true", "False": "false", "None": "null"}
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0", "\n": "", "/": "/"}
HEX = {"x": 2, "u": 4, "U": 8}
PAIR = 6
"""Characters of one half of a surrogate pair, as an escape."""
HIGH_HALVES = frozenset({"d8", "d9", "da", "db"})
"""First two hex digits of an escaped high surrogate."""
CLOSING = {"{": "}", "[": "]"}
NUMBER = frozenset("0123456789+-.eE_")


class LiteralConverter:
    """Converts values by character. `text` returns the JSON that a character completes."""

    def __init__(self, bare_keys: bool = False) -> None:
        """bare_keys: keys have no quotes, and `string_text` receives the strings."""
        self._bare_keys = bare_keys
        self.stack: list[str] = []
        """Closing brackets due, the innermost last."""
        self.stray = False
        """Has an unmatched closing bracket been read?"""
        self._quote = ""
        self._escape = ""
        self._word = ""

    @property
    def in_string(self) -> bool:
        return bool(self._quote)

    def text(self, c: str) -> str:
        if self._quote:
            return self._in_string(c)
        if c in "{}[](),:" or c in WHITE or (c in "'\"" and not self._bare_keys):
            return self._flush(c == ":") + self._structure(c)
        self._word += c
        return ""

    def _structure(self, c: str) -> str:
        if c in "'\"":
            self._quote = c
            return '"'
        if c in WHITE:
            return ""
        if c in "([{":
            c = "[" if c == "(" else c
            self.stack.append(CLOSING[c])
            return c
        if c in ")]}":
            self.stray = self.stray or not self.stack
            return self.stack.pop() if self.stack else ""
        return ", " if c == "," else ": "

    def _flush(self, key: bool) -> str:
        word, self._word = self._word, ""
        if not word:
            return ""
        if not key and (word in WORDS or word in ("true", "false", "null") or _is_number(word)):
            return WORDS.get(word, word.replace("_", ""))
        return json.dumps(word, ensure_ascii=False)

    def _in_string(self, c: str) -> str:
        if len(self._escape) >= PAIR:
            return self._second_half(c)
        if self._escape:
            self._escape += c
            wanted = HEX.get(self._escape[1], 0)
            if len(self._escape) < 2 + wanted or _is_high(self._escape):
                return ""
            text, self._escape = self._escape, ""
            return _inside(_unescape(text))
        if c == "\\":
            self._escape = c
            return ""
        if c == self._quote:
            self._quote = ""
            return '"'
        return _inside(c)

    def _second_half(self, c: str) -> str:
        """Continues after the escape of a high surrogate."""
        expected = "\\u"[len(self._escape) - PAIR : len(self._escape) - PAIR + 1]
        if expected and c != expected:  # no low surrogate follows
            self._escape = self._escape[PAIR:]
            return "\ufffd" + self._in_string(c)
        self._escape += c
        if len(self._escape) < 2 * PAIR:
            return ""
        first, second = self._escape[:PAIR], self._escape[PAIR:]
        self._escape = ""
        try:
            low = int(second[2:], 16) - 0xDC00
        except ValueError:
            low = -1
        if not 0 <= low < 0x400:
            return "\ufffd" + _inside(_unescape(second))
        return chr(0x10000 + (int(first[2:], 16) - 0xD800 << 10) + low)

    def string_text(self, text: str) -> str:
        """Part of a string, verbatim."""
        return _inside(text)

    def finish(self) -> str:
        """The JSON text that closes every open string and bracket."""
        end = ('"' if self._quote else "") + self._flush(False)
        self._quote = self._escape = ""
        while self.stack:
            end += self.stack.pop()
        return end


def _is_high(escape: str) -> bool:
    """Is it the escape of a high surrogate?"""
    return len(escape) == PAIR and escape[1] == "u" and escape[2:4].lower() in HIGH_HALVES


def _unescape(text: str) -> str:
    kind = text[1]
    if kind in HEX:
        try:
            code = int(text[2:], 16)
        except ValueError:
            return text
        return chr(code) if code < 0x110000 and not 0xD800 <= code < 0xE000 else "\ufffd"
    return ESCAPES.get(kind, kind if kind in "\\'\"" else text)


def _inside(text: str) -> str:
    """The text escaped for the inside of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _is_number(word: str) -> bool:
    if not set(word) <= NUMBER:
        return False
    try:
        json.loads(word.replace("_", ""))
    except ValueError:
        return False
    return True


def as_json(text: str, most: int = 1 << 20) -> str | None:
    """A Python literal as JSON text. None: not a literal, or longer than `most` characters."""
    if len(text) > most:
        return None
    literal = LiteralConverter()
    result = "".join(map(literal.text, text)) + literal.finish()
    try:
        json.loads(result)
    except (ValueError, RecursionError):
        return None
    return None if literal.stray else result


class GemmaArgsReader(BodyReader):
    """Reads {key:value, ...} of a call that has begun, after the first brace."""

    def __init__(self, sink: CallSink, quote: str) -> None:
        self._sink, self._quote = sink, quote
        self._literal = LiteralConverter(bare_keys=True)
        self._string = False
        self.own = (quote,)
        sink.args(self._literal.text("{"))

    @property
    def open(self) -> bool:  # type: ignore[override]
        return not self._string

    def text(self, c: str) -> None:
        self._sink.args(self._literal.string_text(c) if self._string else self._literal.text(c))
        if not self._literal.stack:
            self._sink.end()

    def hit(self, terminal: str) -> None:
        self._string = not self._string
        self._sink.args('"')

    def finish(self, cut: bool = False) -> None:
        if not cut:
            self._sink.args(('"' if self._string else "") + self._literal.finish())
        self._sink.end()


class PythonCallsReader(BodyReader):
    """Reads name(key=literal, ...): one call, several, or a list of calls."""

    def __init__(self, sink: CallSink) -> None:
        self._sink = sink
        self._list: bool | None = None
        self._name: list[str] = []
        self._literal: LiteralConverter | None = None
        self._key: list[str] | None = None
        self._first, self._any = True, False

    @property
    def open(self) -> bool:  # type: ignore[override]
        return self._literal is None or not self._literal.in_string

    def text(self, c: str) -> None:
        if self._literal is not None:
            self._value(c, self._literal)
        elif self._key is not None:
            self._in_key(c)
        elif c == "[" and self._list is None and not self._name:
            self._list = True
        elif c == "]" and self._list and self._any and not self._name:
            self._sink.end()
        elif c == "(" and self._name:
            if self._sink.commit("".join(self._name).strip()):
                self._name, self._key, self._first, self._any = [], [], True, True
        elif c in WHITE or c in ",;":
            if self._name and c != " ":
                self._sink.fail()
        elif c.isalnum() or c in "_.-":
            self._list = self._list or False
            self._name.append(c)
        else:
            self._sink.fail()

    def _in_key(self, c: str) -> None:
        assert self._key is not None
        if c == "=":
            key, self._key = "".join(self._key).strip(), None
            self._sink.args(("{" if self._first else ", ") + json.dumps(key, ensure_ascii=False) + ": ")
            self._first, self._literal = False, LiteralConverter()
        elif c == ")":
            self._close()
        elif c != ",":
            self._key.append(c)

    def _value(self, c: str, literal: LiteralConverter) -> None:
        if not literal.in_string and not literal.stack and c in ",)":
            self._sink.args(literal.finish())
            self._literal, self._key = None, []
            if c == ")":
                self._close()
        else:
            self._sink.args(literal.text(c))

    def _close(self) -> None:
        self._sink.args("" if self._first else "}")
        self._key = None
        self._sink.pause()

    def finish(self, cut: bool = False) -> None:
        if self._literal is not None or self._key is not None:
            if self._literal is not None and not cut:
                self._sink.args(self._literal.finish())
            self._sink.args("" if self._first or cut else "}")
            self._sink.end()
        elif self._name or not self._any:
            self._sink.fail()
        else:
            self._sink.end()
