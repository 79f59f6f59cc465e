"""The modes of a reader: each defines the terminals that it matches, and the meaning of terminals and text.

A mark counts as a terminal only where the format allows it. Elsewhere the token is the text that it spells.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from thalweg.turns.bodies.body import WHITE, BodyReader
from thalweg.turns.format import CallHead, Calls, JsonCalls, PythonCalls, Slot
from thalweg.turns.grammar_scope import GrammarScope

if TYPE_CHECKING:
    from thalweg.turns.reader import Reader

HEAD_MOST = 4096
"""Characters of a name or id. Longer text is neither."""


class Mode:
    bulk = False
    """Does `run` now accept text in bulk? The text begins no terminal and has no character of `stops`."""
    stops = ""
    terminals: tuple[str, ...] = ()

    def __init__(self, reader: Reader) -> None:
        self.reader = reader

    @property
    def calls(self) -> Calls:
        """The row of calls, in modes that only such a row leads to."""
        calls = self.reader.calls
        assert calls is not None
        return calls

    def text(self, c: str) -> None:
        raise NotImplementedError

    def run(self, text: str) -> None:
        """Many characters at once. They lead to no other mode."""
        self.text(text)

    def hit(self, terminal: str) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        """The text ends here."""


def some(*terminals: str) -> tuple[str, ...]:
    """The distinct terminals, without empty ones."""
    return tuple(dict.fromkeys(t for t in terminals if t))


def beginnings(reader: Reader) -> tuple[str, ...]:
    """Terminals that begin calls in content and reasoning. Where a grammar decides the calls, only the grammar's terminal."""
    calls = reader.calls
    if calls is None:
        return ()
    return some(calls.beginning) if GrammarScope.CALLS in reader.held else some(*reader.opens, calls.section[0])


def interrupting_terminals(reader: Reader) -> tuple[str, ...]:
    """Terminals that end any mode except within data."""
    calls, header = reader.calls, reader.turn.headers
    section = calls.section[0] if calls is not None else ""
    return some(*reader.opens, section, *((header.open, *header.closes) if header is not None else ()))


def begin(reader: Reader, terminal: str) -> bool:
    """Enter the call, section or header that the terminal opens. False: it opens none."""
    from thalweg.turns.headers import HeaderMode

    header = reader.turn.headers
    if reader.calls is not None and terminal in reader.opens:
        reader.call(terminal)
    elif reader.calls is not None and terminal == reader.calls.section[0]:
        reader.section(terminal)
    elif header is not None and (terminal == header.open or terminal in header.closes):
        reader.raw = None
        reader.go(HeaderMode(reader, terminal, reader.mode))
    else:
        return False
    return True


def bare_beginnings(reader: Reader) -> str:
    """Characters that begin a call without a terminal, as the first of a turn."""
    calls = reader.calls
    if calls is None or not calls.bare or reader.spoke or (calls.beginning and GrammarScope.CALLS in reader.held):
        return ""
    return "[" if isinstance(calls.body, PythonCalls) else "{["


class ContentMode(Mode):
    """Content, in which calls may begin. Reasoning may begin before it."""

    def __init__(self, reader: Reader) -> None:
        super().__init__(reader)
        self._bare = bare_beginnings(reader)
        self._listen()

    def _listen(self) -> None:
        reader = self.reader
        header, self._fresh = reader.turn.headers, not reader.spoke
        ends = (header.open, *header.closes) if header is not None else ()
        self.terminals = some(*beginnings(reader), *ends, *reader.turn.wraps, *(reader.thoughts if self._fresh else ()))
        self.bulk = not self._bare

    def text(self, c: str) -> None:
        reader = self.reader
        if self._bare and c not in WHITE:
            if c in self._bare:
                self._bare = ""
                self._listen()
                reader.call("", c)
                reader.mode.text(c)
                return
            self._bare = ""
            self._listen()
        reader.content(c)
        if self._fresh and reader.spoke:
            self._listen()

    def hit(self, terminal: str) -> None:
        reader = self.reader
        if begin(reader, terminal):
            return
        reasoning = reader.turn.reasoning
        if terminal in reader.turn.wraps:
            reader.wrap(terminal)
        elif reasoning is not None and terminal == reasoning.close:  # empty reasoning: closed without an opening
            reader.note_terminal()
        else:
            reader.think()


class OpeningMode(Mode):
    """Before content that a grammar decides. Reasoning or calls may come, where the grammar covers them."""

    def __init__(self, reader: Reader) -> None:
        super().__init__(reader)
        reasoning, whole = reader.turn.reasoning, GrammarScope.THOUGHT in reader.held
        opens = reader.thoughts[:-1] if whole and not reader.heard else ()
        self.terminals = some(*(beginnings(reader) if GrammarScope.CALLS in reader.held else ()), *opens)
        self._bare = bare_beginnings(reader) if GrammarScope.CALLS in reader.held else ""
        self._skip = reasoning.after if whole and reader.heard and reasoning is not None else ""
        self._white = ""
        """White space read so far, which may precede a call in JSON without a terminal."""

    def text(self, c: str) -> None:
        if self._skip and c == self._skip[0]:
            self._skip = self._skip[1:]
            return
        self._skip, self.terminals = "", ()
        self._white += c
        if c in self._bare:
            self.reader.call("", self._white)
            self.reader.mode.text(c)
        elif not (self._bare and c in WHITE):
            self.reader.answer(self._white)

    def hit(self, terminal: str) -> None:
        if not begin(self.reader, terminal):
            self.reader.think()

    def finish(self) -> None:
        if self._white:
            self.reader.answer(self._white)


class AnswerMode(Mode):
    """Content that a grammar decides, to the end of the turn."""

    bulk = True

    def text(self, c: str) -> None:
        self.reader.say(c)


class ReasoningMode(Mode):
    bulk = True

    def __init__(self, reader: Reader) -> None:
        super().__init__(reader)
        reasoning, header, whole = reader.turn.reasoning, reader.turn.headers, GrammarScope.THOUGHT in reader.held
        found = [reasoning.close] if reasoning is not None else []
        if reasoning is not None and reasoning.implicit_ends and not whole:
            found += beginnings(reader)
        if header is not None:
            found += header.closes[:1] if whole else [header.open, *header.closes]
        self.terminals = some(*found)

    def text(self, c: str) -> None:
        self.reader.add_reasoning(c)

    def hit(self, terminal: str) -> None:
        reader, reasoning = self.reader, self.reader.turn.reasoning
        if reasoning is not None and terminal == reasoning.close:
            reader.think_end()
            reader.go(reader.speaking())
        else:  # reasoning ends if this proves to be a call or a header
            begin(reader, terminal)


class BetweenCallsMode(Mode):
    """Within a section of calls, outside calls."""

    def __init__(self, reader: Reader) -> None:
        super().__init__(reader)
        self.terminals = some(self.calls.section[1], *interrupting_terminals(reader), *reader.ends_of_thought)

    def text(self, c: str) -> None:
        if c not in WHITE and c not in self.calls.separator:
            self.reader.fail()

    def hit(self, terminal: str) -> None:
        reader = self.reader
        first, last = self.calls.section
        if terminal == last:
            reader.in_section = False
            if reader.raw and reader.raw[0] == first:
                reader.fail()  # the section had no call
            else:
                reader.raw = None
                reader.go(ContentMode(reader))
        elif terminal in reader.ends_of_thought:
            reader.fail_at(terminal)
        else:
            begin(reader, terminal)

    def finish(self) -> None:
        reader = self.reader
        if reader.raw and reader.raw[0] != self.calls.section[0]:
            reader.raw = None


class HeadMode(Mode):
    """A call's opening terminal is read, and its arguments have not begun."""

    def __init__(self, reader: Reader, head: CallHead) -> None:
        super().__init__(reader)
        calls = self.calls
        self._head, self._then = head, dict(head.then)
        self._slot: Slot = head.first
        self._words: dict[str, list[str]] = {"name": [], "id": []}
        self._size, self._gap = 0, False
        self.terminals = some(
            *self._then, *head.skip, calls.close, calls.section[1], *interrupting_terminals(reader), *reader.ends_of_thought
        )

    def text(self, c: str) -> None:
        if not self._size and c in WHITE:
            return
        self._size += 1
        if self._size == 1 and self._head.or_json and c in "[{":
            self.reader.body(JsonCalls())
            self.reader.mode.text(c)
        elif self._size > HEAD_MOST:
            self.reader.fail()
        elif self._slot in self._words:
            self._word(c)

    def _word(self, c: str) -> None:
        """Names and ids have no space. Text with one only mentions the terminal."""
        words = self._words[self._slot]
        if c in WHITE:
            self._gap = bool(words)
        elif self._gap:
            self.reader.fail()
        else:
            words.append(c)

    def hit(self, terminal: str) -> None:
        reader, slot = self.reader, self._then.get(terminal)
        if slot in ("name", "id"):
            self._slot, self._gap = slot, False
        elif slot is not None:
            if self._commit():
                reader.body(self.calls.body, slot == "key")
        elif terminal in self._head.skip:
            pass
        elif terminal == self.calls.close:
            if self._commit():
                reader.end()
                reader.mode.hit(terminal)
        else:  # another call, or the end of the section
            reader.fail_at(terminal)

    def _commit(self) -> bool:
        name, id = ("".join(self._words[w]) for w in ("name", "id"))
        before, after = self._head.name_in_id
        if not name and after:
            name = id.removeprefix(before).rpartition(after)[0] or id.removeprefix(before)
        return self.reader.commit(name, id)


class BodyMode(Mode):
    """Within a call's arguments. In data, only the terminals that end the data match."""

    def __init__(self, reader: Reader, body: BodyReader) -> None:
        super().__init__(reader)
        self._body = body
        self._around = some(self.calls.close, self.calls.section[1], *interrupting_terminals(reader))
        self._made: dict[tuple[tuple[str, ...], bool, tuple[str, ...]], tuple[str, ...]] = {}
        self._tune()

    def _tune(self) -> None:
        now = self._body.own, self._body.open, self.reader.ends_of_thought
        terminals = self._made.get(now)
        if terminals is None:
            terminals = self._made[now] = some(*now[0], *(self._around if now[1] else ()), *now[2])
        self.terminals = terminals
        self.bulk, self.stops = self._body.stops is not None, self._body.stops or ""

    def run(self, text: str) -> None:
        self._body.run(text)

    def text(self, c: str) -> None:
        self._body.text(c)
        self._tune()

    def hit(self, terminal: str) -> None:
        if terminal in self._body.own:
            self._body.hit(terminal)
            self._tune()
            return
        reader = self.reader
        if terminal in reader.ends_of_thought:
            reader.fail_at(terminal)
            return
        if reader.raw and reader.raw[-1] == terminal:
            reader.raw.pop()
        raw = reader.raw is not None
        self._body.finish()
        if terminal in reader.mode.terminals:
            reader.mode.hit(terminal)
        elif raw:
            reader.lose(reader.token_text(terminal))

    def finish(self) -> None:
        self._body.finish(self.reader.cut)


class AfterCallMode(Mode):
    """A call is complete, and its closing terminal may follow, or another call."""

    def __init__(self, reader: Reader) -> None:
        super().__init__(reader)
        calls = self.calls
        opens = reader.thoughts[:1]
        self.terminals = some(calls.close, calls.section[1], *interrupting_terminals(reader), *reader.turn.wraps, *opens)
        self._more = "{" if isinstance(calls.body, JsonCalls) else ""

    def text(self, c: str) -> None:
        reader = self.reader
        if c in self._more:
            reader.raw = [c]
            reader.body(self.calls.body)
            reader.mode.text(c)
        elif c not in WHITE and c not in self.calls.separator:
            reader.fail()

    def hit(self, terminal: str) -> None:
        reader, calls = self.reader, self.calls
        if terminal == calls.section[1]:
            reader.in_section = False
            reader.raw = None
            reader.go(ContentMode(reader))
        elif terminal == calls.close:
            reader.raw = [] if reader.in_section else None
            reader.resume()
        elif terminal in reader.turn.wraps:
            reader.raw = None
            reader.resume()
        elif not begin(reader, terminal):
            reader.raw = None
            reader.think()

    def finish(self) -> None:
        self.reader.raw = None
