"""What a reader may be in the middle of. A mode says which terminals it listens for, and what they and text mean."""

from __future__ import annotations

from typing import TYPE_CHECKING

from thalweg.text.marks import is_half
from thalweg.turns.bodies.body import WHITE, Body
from thalweg.turns.format import Head, JsonArgs, JsonCalls, PythonCalls, Slot

if TYPE_CHECKING:
    from thalweg.turns.reader import Reader

HEAD_MOST = 4096
"""Characters of a name or id. What is longer is none."""


class Mode:
    bulk = False
    """Is text that begins no terminal, and has none of `stops` in it, now taken by `run` at once?"""
    stops = ""
    terminals: tuple[str, ...] = ()

    def __init__(self, reader: Reader) -> None:
        self.reader = reader

    def text(self, c: str) -> None:
        raise NotImplementedError

    def run(self, text: str) -> None:
        """Many characters, none of which changes the mode."""
        self.text(text)

    def hit(self, terminal: str) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        """The text ends here."""


def listened(reader: Reader) -> tuple[str, ...]:
    """What ends anything that is not data."""
    calls, header = reader.calls, reader.turn.headers
    found = [*reader.opens]
    if calls is not None:
        found += [calls.section[0]]
    if header is not None:
        found += [header.open, *header.closes]
    return tuple(dict.fromkeys(f for f in found if f))


def begin(reader: Reader, terminal: str) -> bool:
    """Begin what a terminal of `listened` opens."""
    header = reader.turn.headers
    if reader.calls is not None and terminal in reader.opens:
        reader.call(terminal)
    elif reader.calls is not None and terminal == reader.calls.section[0]:
        reader.section(terminal)
    elif header is not None and (terminal == header.open or terminal in header.closes):
        reader.raw = None
        reader.go(HeaderMode(reader))
    else:
        return False
    return True


class ContentMode(Mode):
    """Content, in which calls and reasoning may begin."""

    def __init__(self, reader: Reader) -> None:
        super().__init__(reader)
        calls, reasoning = reader.calls, reader.turn.reasoning
        found = [*listened(reader), *reader.turn.wraps]
        if reasoning is not None and not reasoning.kept:
            found += [o for o in (reasoning.open, *reasoning.also, reasoning.close) if o]
        self.terminals = tuple(dict.fromkeys(found))
        self._bare = ""
        if calls is not None and calls.bare and not reader.spoke:
            self._bare = "[" if isinstance(calls.body, PythonCalls) else "{["
        self.bulk = not self._bare

    def text(self, c: str) -> None:
        if self._bare and c not in WHITE:
            if c in self._bare:
                self._bare, self.bulk = "", True
                reader = self.reader
                reader.raw = [c]
                reader.call("")
                reader.mode.text(c)
                return
            self._bare, self.bulk = "", True
        self.reader.content(c)

    def hit(self, terminal: str) -> None:
        reader = self.reader
        if begin(reader, terminal):
            return
        reasoning = reader.turn.reasoning
        if terminal in reader.turn.wraps:
            reader.marked()
        elif reasoning is None or terminal != reasoning.close:
            reader.think()
        elif reader.spoke:
            reader.content(reader.shown(terminal))
        else:  # reasoning that is over before it began
            reader.marked()


class Thinking(Mode):
    bulk = True

    def __init__(self, reader: Reader) -> None:
        super().__init__(reader)
        reasoning, header = reader.turn.reasoning, reader.turn.headers
        found = [reasoning.close] if reasoning is not None else []
        if reasoning is not None and reasoning.implicit_ends and reader.calls is not None:
            found += [*reader.opens, reader.calls.section[0]]
        if header is not None:
            found += [header.open, *header.closes]
        self.terminals = tuple(dict.fromkeys(f for f in found if f))

    def text(self, c: str) -> None:
        self.reader.thought(c)

    def hit(self, terminal: str) -> None:
        self.reader.think_end()
        if not begin(self.reader, terminal):
            self.reader.go(ContentMode(self.reader))


class Between(Mode):
    """In a section, outside calls."""

    def __init__(self, reader: Reader) -> None:
        super().__init__(reader)
        assert reader.calls is not None
        self.terminals = tuple(dict.fromkeys((reader.calls.section[1], *listened(reader))))

    def text(self, c: str) -> None:
        if c not in WHITE and c not in self.reader.calls.separator:  # type: ignore[union-attr]
            self.reader.fail()

    def hit(self, terminal: str) -> None:
        reader = self.reader
        if reader.calls is not None and terminal == reader.calls.section[1]:
            reader.in_section = False
            if reader.raw and reader.raw[0] == reader.calls.section[0]:
                reader.fail()  # no call was in it
            else:
                reader.raw = None
                reader.go(ContentMode(reader))
        else:
            begin(reader, terminal)

    def finish(self) -> None:
        if self.reader.raw and self.reader.calls and self.reader.raw[0] != self.reader.calls.section[0]:
            self.reader.raw = None


class HeadMode(Mode):
    """A call's opening terminal is read, and its arguments have not begun."""

    def __init__(self, reader: Reader, head: Head) -> None:
        super().__init__(reader)
        calls = reader.calls
        assert calls is not None
        self._head, self._then = head, dict(head.then)
        self._slot: Slot = head.first
        self._words: dict[str, list[str]] = {"name": [], "id": []}
        self._size = 0
        found = (*self._then, *head.skip, calls.close, calls.section[1], *listened(reader))
        self.terminals = tuple(dict.fromkeys(f for f in found if f))

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
            self._words[self._slot].append(c)

    def hit(self, terminal: str) -> None:
        reader, slot = self.reader, self._then.get(terminal)
        if slot in ("name", "id"):
            self._slot = slot
        elif slot is not None:
            if self._commit():
                reader.body(reader.calls.body, slot == "key")  # type: ignore[union-attr]
        elif terminal in self._head.skip:
            pass
        elif reader.calls is not None and terminal == reader.calls.close:
            if self._commit():
                reader.args("{}")
                reader.end()
                reader.mode.hit(terminal)
        else:  # another call, or the end of all
            raw = reader.raw or []
            kept = raw.pop() if raw and raw[-1] == terminal else ""
            reader.fail()
            if kept and terminal in reader.mode.terminals:
                reader.mode.hit(terminal)
            elif kept:
                reader.content(reader.shown(terminal))

    def _commit(self) -> bool:
        name, id = ("".join(self._words[w]).strip(WHITE) for w in ("name", "id"))
        before, after = self._head.name_in_id
        if not name and after:
            name = id.removeprefix(before).rpartition(after)[0] or id.removeprefix(before)
        return self.reader.commit(name, id)


class BodyMode(Mode):
    """Within a call's arguments."""

    def __init__(self, reader: Reader, body: Body) -> None:
        super().__init__(reader)
        calls = reader.calls
        assert calls is not None
        self._body = body
        around = (calls.close, calls.section[1], *listened(reader))
        self._around = tuple(dict.fromkeys(a for a in around if a))
        self._tokens = tuple(a for a in self._around if any(map(is_half, a)))
        self._made: dict[tuple[tuple[str, ...], bool], tuple[str, ...]] = {}
        self._tune()

    def _tune(self) -> None:
        now = self._body.own, self._body.open
        terminals = self._made.get(now)
        if terminals is None:
            around = self._around if now[1] else self._tokens
            terminals = self._made[now] = tuple(dict.fromkeys((*now[0], *around)))
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
        if reader.raw and reader.raw[-1] == terminal:
            reader.raw.pop()
        raw = reader.raw is not None
        self._body.finish()
        if terminal in reader.mode.terminals:
            reader.mode.hit(terminal)
        elif raw:
            reader.content(reader.shown(terminal))

    def finish(self) -> None:
        self._body.finish()


class After(Mode):
    """A call is complete, and its closing terminal may follow, or another call."""

    def __init__(self, reader: Reader) -> None:
        super().__init__(reader)
        calls = reader.calls
        assert calls is not None
        reasoning = reader.turn.reasoning
        found = [calls.close, calls.section[1], *listened(reader), *reader.turn.wraps]
        if reasoning is not None and not reasoning.kept:
            found.append(reasoning.open)
        self.terminals = tuple(dict.fromkeys(f for f in found if f))
        self._more = "{" if isinstance(calls.body, JsonCalls) else ""

    def text(self, c: str) -> None:
        reader = self.reader
        if c in self._more:
            reader.raw = [c]
            reader.body(reader.calls.body)  # type: ignore[union-attr]
            reader.mode.text(c)
        elif c not in WHITE and c not in reader.calls.separator:  # type: ignore[union-attr]
            reader.fail()

    def hit(self, terminal: str) -> None:
        reader, calls = self.reader, self.reader.calls
        assert calls is not None
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


class HeaderMode(Mode):
    """Before or within a message's header."""

    def __init__(self, reader: Reader) -> None:
        super().__init__(reader)
        header = reader.turn.headers
        assert header is not None
        self._header = header
        self._text: list[str] = []
        self.terminals = tuple(dict.fromkeys((header.end, header.open, *header.inside, *header.closes)))
        reader.raw = []

    def text(self, c: str) -> None:
        self._text.append(c)

    def hit(self, terminal: str) -> None:
        reader, header = self.reader, self._header
        if terminal in header.inside:
            self._text.append(reader.shown(terminal))
            return
        if terminal != header.end:
            self._text, reader.raw = [], []
            return
        words = "".join(self._text)
        reader.marked()
        name = _recipient(words, header.call) if header.call and reader.calls is not None else ""
        if name:
            if reader.commit(name):
                reader.body(JsonArgs())
            return
        reader.raw = None
        if header.reasoning in words:
            reader.think()
        else:
            reader.go(ContentMode(reader))

    def finish(self) -> None:
        if self.reader.heard:  # only what a header would say
            self.reader.raw = None


def _recipient(words: str, before: str) -> str:
    """The name of the tool in a header, or ""."""
    at = words.find(before)
    rest = words[at + len(before) :] if at >= 0 else ""
    for i, c in enumerate(rest):
        if c in WHITE or c in "<":
            return rest[:i]
    return rest
