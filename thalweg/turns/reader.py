"""The reader: splits a model's text into reasoning, content and calls while it arrives.

It is a machine over characters, so the cuts of its input cannot matter. It holds back exactly the longest suffix that may
begin a terminal, and white space that may adjoin one. It raises no errors: text that does not fit is content. The end of
the text closes every open part. A character costs a bounded number of steps.
"""

from __future__ import annotations

import re
import secrets
import string
import uuid
from collections.abc import Mapping
from typing import Any

from thalweg.text.marks import is_half
from thalweg.turns.bind import BoundTurnFormat
from thalweg.turns.bodies.body import WHITE, BodyReader
from thalweg.turns.bodies.json_body import JsonArgsReader, JsonCallsReader
from thalweg.turns.bodies.literal import GemmaArgsReader, PythonCallsReader
from thalweg.turns.bodies.tagged import TaggedArgsReader
from thalweg.turns.events import CallArguments, CallStart, Content, Event, EventBuffer, Message, Thought
from thalweg.turns.format import Body as Row
from thalweg.turns.format import GemmaArgs, JsonCalls, PythonCalls, TaggedArgs
from thalweg.turns.grammar_scope import GrammarScope
from thalweg.turns.headers import HeaderMode
from thalweg.turns.modes import (
    AfterCallMode,
    AnswerMode,
    BetweenCallsMode,
    BodyMode,
    ContentMode,
    HeadMode,
    Mode,
    OpeningMode,
    ReasoningMode,
)

PIECE = 256
"""Characters searched at once for the beginning of a terminal."""
NAME_MOST = 256
NULL = "null"
HALF = re.compile("[\ud800-\udfff]")
"""Matches halves of marks."""


class Reader:
    """One turn. `push` its text piece by piece, then `finish`."""

    def __init__(
        self,
        bound: BoundTurnFormat,
        prompt: str = "",
        tools: Mapping[str, Any] | None = None,
        held: GrammarScope = GrammarScope.NOTHING,
    ) -> None:
        """prompt: the text before the turn. Reasoning may begin in it. tools: name -> JSON schema of its parameters. held: the
        parts of the turn that a grammar decides."""
        self.turn, self._bound, self.tools, self.held = bound.turn, bound, tools or {}, held
        self.calls = self.turn.calls
        self.steps = 0
        """Characters processed one by one, including repeats."""
        self._found = EventBuffer()
        self._held, self._state = "", 0
        self.raw: list[str] | None = None
        """All text since the first terminal of a possible call. None: no call is possible."""
        self.index = -1
        """Index of the last call that began."""
        self._white: list[str] = []
        self._wrapped: int | None = None
        """Position in `_white` of a terminal around content. It is text if content continues."""
        self._doubt: Mode | None = None
        """The mode of the reasoning that contains a possible call."""
        self.spoke = self.heard = self._called = False
        self._thought = self._thinks = False
        self._thought_white: list[str] = []
        self.in_section = self.strict = False
        """strict: the call began without a terminal."""
        self._name, self._first_half = "", ""
        self._nothing: str | None = None
        """Arguments of the call, while they are empty or may become null."""
        self.cut = False
        """Did the text end before the model ended it?"""
        self.failed = False
        """Has a possible call or header just turned out to be text?"""
        self._begin(prompt)

    def _begin(self, prompt: str) -> None:
        reasoning, header, end = self.turn.reasoning, self.turn.headers, prompt.rstrip(WHITE)
        if header is not None and (GrammarScope.CONTENT not in self.held or GrammarScope.THOUGHT in self.held):
            inside = prompt.rfind(self.token_text(header.open)) >= prompt.rfind(self.token_text(header.end))
            self.go(HeaderMode(self) if inside else self.speaking())
        elif reasoning is None or header is not None:
            self.go(self.speaking())
        elif reasoning.kept:
            if (
                reasoning.assumed
                and GrammarScope.CONTENT not in self.held
                and not end.endswith(self.token_text(reasoning.close))
            ):
                self.content(self.token_text(reasoning.open))
            self.go(self.speaking())
        else:
            opens = [self.token_text(o) for o in (reasoning.open, *reasoning.also) if o]
            began = any(end.endswith(o.rstrip(WHITE)) for o in opens)
            ended = end.endswith(self.token_text(reasoning.close).rstrip(WHITE))
            if began or (reasoning.assumed and not ended):
                self.think()
            else:
                self.heard = ended
                self.go(self.speaking())

    @property
    def thoughts(self) -> tuple[str, ...]:
        """Terminals that begin reasoning, and last the one that ends it. (): no reasoning, or it is part of the content."""
        reasoning = self.turn.reasoning
        if reasoning is None or reasoning.kept or not reasoning.close:
            return ()
        return (*(o for o in (reasoning.open, *reasoning.also) if o), reasoning.close)

    @property
    def ends_of_thought(self) -> tuple[str, ...]:
        """The terminal that ends reasoning around a possible call. If it comes first, there is no call."""
        return self.thoughts[-1:] if self._doubt is not None and GrammarScope.CALLS not in self.held else ()

    def speaking(self) -> Mode:
        """The mode that content begins in."""
        return OpeningMode(self) if GrammarScope.CONTENT in self.held else ContentMode(self)

    @property
    def thinking(self) -> bool:
        """Is the reader within reasoning, or at its beginning?"""
        return isinstance(self.mode, ReasoningMode)

    @property
    def in_header(self) -> bool:
        """Is the reader within a message's header?"""
        return isinstance(self.mode, HeaderMode)

    def token_text(self, text: str) -> str:
        """Text with marks written as tokens."""
        return self._bound.token_text(text)

    def push(self, text: str) -> list[Event]:
        """The events that this text completes."""
        for at in range(0, len(text), PIECE):
            piece, i = text[at : at + PIECE], 0
            while i < len(piece):
                plain = self._plain(piece, i) if not self._held else ""
                if not plain:
                    self._feed(piece[i])
                    i += 1
                    continue
                i += len(plain)
                if self.raw is not None:
                    self.raw.append(plain)
                self.mode.run(plain)
                if self.mode.terminals is not self._terminals:
                    self._retune()
        return self._take()

    def _plain(self, piece: str, at: int) -> str:
        """Characters from `at` on that `run` accepts at once: they begin no terminal and do not change the mode."""
        if not self.mode.bulk:
            return ""
        stop = len(piece)
        for c in self.mode.stops:
            found = piece.find(c, at, stop)
            stop = found if found >= 0 else stop
        half = None if piece.isascii() else HALF.search(piece, at, stop)
        stop = half.start() if half is not None else stop
        plain = piece[at:stop] if at else piece[:stop]
        return plain if self._first.isdisjoint(plain) else ""

    def finish(self, cut: bool = False) -> list[Event]:
        """The remaining events at the end of the text. cut: the model did not end the text. A call then has the arguments
        written so far, left open, and the beginning of a mark in it or after it is dropped. Otherwise a call is closed, and one
        without arguments gets an empty object."""
        self.cut = cut
        while self._held:
            held, self._held, self._state = self._held, "", 0
            if not self._marks_only:
                self._deliver(held)
        self.mode.finish()
        if self.raw is not None:
            self.fail()
        if self._wrapped is not None:
            self._drop_white()
        if not self._called:
            self._flush_white()
        return self._take()

    @property
    def _marks_only(self) -> bool:
        """Was the text cut off in a call, or after a call with neither content nor reasoning behind it?"""
        inside = isinstance(self.mode, BodyMode) and self.raw is None
        return self.cut and self._doubt is None and not self.thinking and (inside or self._called)

    def _take(self) -> list[Event]:
        return self._found.take()

    def _feed(self, c: str) -> None:
        self.steps += 1
        automaton = self._automaton
        self._held += c
        self._state = state = automaton.step(self._state, c)
        hit = automaton.match[state]
        if hit is None:
            keep = automaton.held[state]
            if keep < len(self._held):
                cut = len(self._held) - keep
                out, self._held = self._held[:cut], self._held[cut:]
                self._deliver(out)
            return
        before, self._held, self._state = self._held[: -len(hit)], "", 0
        mode, terminals = self.mode, self._terminals
        if before and self._deliver(before, hit):
            return
        assert (mode, terminals) == (self.mode, self._terminals)
        if self.raw is not None:
            self.raw.append(hit)
        self.mode.hit(hit)
        self._retune()

    def _deliver(self, text: str, after: str = "") -> bool:
        """Text outside terminals. True: it changed the terminals, and the rest of the text, the held text and `after` were
        processed again."""
        for i, c in enumerate(text):
            mode, terminals = self.mode, self._terminals
            if self.raw is not None:
                self.raw.append(c)
            if is_half(c):
                self._half(c)
            else:
                mode.text(c)
            if mode is not self.mode or self.mode.terminals is not terminals:
                self._retune()
                again = text[i + 1 :] + self._held + after
                self._held, self._state = "", 0
                for r in again:
                    self._feed(r)
                return True
        return False

    def _half(self, c: str) -> None:
        """Half of a mark that is not a terminal here: the token is text."""
        if c < "\udc00":
            self._first_half = c
            return
        self.failed = False
        for t in self._bound.named.get(self._first_half + c, ""):
            self.mode.text(t)
            if self.failed:  # the whole token was added to the lost text
                break

    def go(self, mode: Mode) -> None:
        self.mode = mode
        self._retune()

    def _retune(self) -> None:
        self._terminals = self.mode.terminals
        self._automaton = self._bound.automaton(self._terminals)
        self._first = self._automaton.first

    # Called by modes and bodies.

    def content(self, text: str) -> None:
        """Content. White space at its ends is held back: next to a terminal it is not content."""
        body = text.rstrip(WHITE)
        if not body:
            self._white.append(text)
            return
        if self.spoke or not self.heard:
            self._flush_white()
        else:
            self._drop_white()
            body, text = body.lstrip(WHITE), text.lstrip(WHITE)
        self.spoke, self._called = True, False
        self._emit(Content(body))
        if len(text) > len(body):
            self._white.append(text[len(body) :])

    def _flush_white(self) -> None:
        if self._white and (self.spoke or not self.heard):
            self._emit(Content("".join(self._white)))
        self._drop_white()

    def _drop_white(self) -> None:
        self._white.clear()
        self._wrapped = None

    def wrap(self, terminal: str) -> None:
        """A terminal around content. It is text if content continues after it."""
        if self.spoke and self._wrapped is None:
            self._wrapped = len(self._white)
            self._white.append(self.token_text(terminal))
        else:
            self._unwrap()
            self.note_terminal()

    def _unwrap(self) -> None:
        """The terminal around content has ended it."""
        if self._wrapped is not None:
            del self._white[self._wrapped :]
            self._wrapped = None

    def answer(self, text: str) -> None:
        """Content that a grammar decides begins with this text."""
        self.go(AnswerMode(self))
        self.say(text)

    def say(self, text: str) -> None:
        """Content with all its white space."""
        if text:
            self.spoke = True
            self._emit(Content(text))

    def note_terminal(self) -> None:
        """A terminal was read."""
        self.heard = True
        self._unwrap()
        if not self.spoke:
            self._white.clear()

    def think(self) -> None:
        self.note_terminal()
        if self._thought:
            self._thought_white = ["\n"]
        self._thinks = False
        self.go(ReasoningMode(self))

    def add_reasoning(self, text: str) -> None:
        body = text.rstrip(WHITE)
        if not body:
            if self._thinks:
                self._thought_white.append(text)
            return
        if not self._thinks:
            body, text = body.lstrip(WHITE), text.lstrip(WHITE)
        before = "".join(self._thought_white)
        self._thought_white = [text[len(body) :]]
        self._thinks = self._thought = True
        self._emit(Thought(before + body))

    def think_end(self) -> None:
        self._thought_white = []
        self.note_terminal()

    def resume(self) -> None:
        """Continue after a call: within the section, or in content."""
        self.go(BetweenCallsMode(self) if self.in_section else ContentMode(self))

    def section(self, terminal: str) -> None:
        self._begin_raw(terminal)
        self.in_section = True
        self.go(BetweenCallsMode(self))

    def _begin_raw(self, text: str) -> None:
        if self.raw is None:
            self._doubt = self.mode if self.thinking else None
        self.raw = [text]

    def call(self, terminal: str, text: str = "") -> None:
        """A call's opening terminal, or "" where it begins without one. text: the beginning of a call without a terminal."""
        calls = self.calls
        assert calls is not None
        if self.raw is None:
            self._begin_raw(terminal or text)
        self.strict = not terminal
        if calls.head is not None:
            self.go(HeadMode(self, calls.head))
        else:
            self.body(calls.body)

    def body(self, row: Row, in_key: bool = False) -> None:
        """The arguments, or calls with arguments, begin. in_key: the first key has begun."""
        self.go(BodyMode(self, self._body(row, in_key)))

    def _body(self, row: Row, in_key: bool) -> BodyReader:
        match row:
            case JsonCalls():
                return JsonCallsReader(self, row, self.strict)
            case TaggedArgs():
                return TaggedArgsReader(self, row, self.tools.get(self._name), in_key, GrammarScope.CALLS in self.held)
            case PythonCalls():
                return PythonCallsReader(self)
            case GemmaArgs(quote):
                return GemmaArgsReader(self, quote)
        return JsonArgsReader(self)

    def commit(self, name: str, id: str = "") -> bool:
        name = name.strip(WHITE)
        if not name or len(name) > NAME_MOST or any(c in WHITE or is_half(c) for c in name) or self._stranger(name):
            self.fail()
            return False
        self.raw, self._name = None, name
        if self._doubt is not None:
            self._doubt = None
            self.think_end()
        self.index += 1
        self._called, self._nothing = True, ""
        self.note_terminal()
        self._emit(CallStart(self.index, id or self._new_id(name), name))
        return True

    def _stranger(self, name: str) -> bool:
        """Does the text only look like a call? It began without a terminal, and names no tool."""
        return bool(self.strict and self.tools and name not in self.tools)

    @property
    def opens(self) -> tuple[str, ...]:
        calls = self.calls
        return tuple(o for o in (calls.open, *calls.also) if o) if calls else ()

    def _new_id(self, name: str) -> str:
        kind = self.calls.ids if self.calls else "random"
        if kind == "indexed":
            return f"functions.{name}:{self.index}"
        if kind == "nine":
            return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))
        return f"chatcmpl-tool-{uuid.uuid4().hex}"

    def args(self, text: str) -> None:
        """More of the arguments. Empty arguments and null become an empty object."""
        if self._nothing is not None:
            text, self._nothing = self._nothing + text, None
            if NULL.startswith(text.strip(WHITE)):
                self._nothing = text
                return
        if text:
            self._emit(CallArguments(self.index, text))

    def _finish_arguments(self) -> None:
        """The arguments end, with the call or with the text."""
        if self._nothing is not None and not self.cut:
            self._emit(CallArguments(self.index, "{}"))
        self._nothing = None

    def pause(self) -> None:
        self._finish_arguments()
        self.raw = []

    def end(self) -> None:
        self._finish_arguments()
        self.raw = []
        self.go(AfterCallMode(self))

    def fail(self) -> None:
        """The possible call is text."""
        self.failed = True
        raw, self.raw = "" if self._marks_only else "".join(self.raw or ()), None
        doubt, self._doubt, self.in_section = self._doubt, None, False
        self.go(doubt or self.speaking())
        self.lose(self.token_text(raw))

    def fail_at(self, terminal: str) -> None:
        """As `fail`, caused by this terminal. The next mode reads the terminal again."""
        raw = self.raw or []
        kept = raw.pop() if raw and raw[-1] == terminal else ""
        self.fail()
        if kept and terminal in self.mode.terminals:
            self.mode.hit(terminal)
        elif kept:
            self.lose(self.token_text(terminal))

    def lose(self, text: str) -> None:
        """Text that turned out to be no terminal."""
        if self.thinking:
            self.add_reasoning(text)
        elif GrammarScope.CONTENT in self.held:
            self.answer(text)
        else:
            self.content(text)

    def stray(self, c: str) -> None:
        self.content(c)

    def _emit(self, event: Event) -> None:
        self._found.add(event)


def read(
    bound: BoundTurnFormat,
    text: str,
    prompt: str = "",
    tools: Mapping[str, Any] | None = None,
    held: GrammarScope = GrammarScope.NOTHING,
    cut: bool = False,
) -> Message:
    """A whole turn at once. Parameters as those of `Reader` and its `finish`."""
    reader, message = Reader(bound, prompt, tools, held), Message()
    message.add(reader.push(text))
    message.add(reader.finish(cut))
    return message
