"""A conversation in a terminal: typed messages, slash commands and streamed answers. Knows no engine, no server."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

from thalweg.errors import RequestError, ThalwegError
from thalweg.turns.events import CallArguments, CallStart, Content, Event, Message, Thought

Messages = list[dict[str, Any]]
DIM, PLAIN = "\x1b[2m", "\x1b[0m"
BLOCK = '"""'
HELP = """/help          this list
/clear         a new conversation (the system message stays)
/system TEXT   another system message; without TEXT, none
/undo          forget the last message and its answer
/retry         answer the last message again
/set NAME=VALUE  a sampling parameter from now on (temperature=0.2); only /set shows them
/save FILE     the conversation as JSON
/quit          end (as Ctrl-D)
A line that ends with \\ goes on in the next. Lines between two lines of \"\"\" are one message."""


class ChatBackend(Protocol):
    sampling: dict[str, Any]
    """Parameters of answers, by name: /set changes them."""

    def answer(self, messages: Messages, show: Callable[[Iterable[Event]], None]) -> Message:
        """The answer. Its pieces also go to `show` when they arrive."""


class Screen:
    """Streamed answers: reasoning dimmed, tool calls named."""

    def __init__(self, terminal: bool | None = None) -> None:
        """terminal: may text be dimmed? None: if standard output is a terminal."""
        self._colours = sys.stdout.isatty() if terminal is None else terminal
        self._dim = False
        self._inside = ""
        """Kind of the last event."""

    def show(self, events: Iterable[Event]) -> None:
        for event in events:
            match event:
                case Thought(text):
                    self._begin("thought")
                    self._write(text)
                case Content(text):
                    self._begin("content")
                    self._write(text)
                case CallStart(_, _, name):
                    self._begin("call", again=True)
                    self._write(f"-> {name}")
                case CallArguments(_, text):
                    self._write(text)
        sys.stdout.flush()

    def end(self) -> None:
        """The answer is whole, or was stopped."""
        self._begin("")
        print()

    def _begin(self, kind: str, again: bool = False) -> None:
        """Begin a separate line for the next output. again: also after another of its kind."""
        if kind == self._inside and not again:
            return
        if self._inside and kind:
            self._write("\n")
        dim = kind == "thought" and self._colours
        if dim is not self._dim:
            self._write(DIM if dim else PLAIN)
            self._dim = dim
        self._inside = kind

    def _write(self, text: str) -> None:
        sys.stdout.write(text)


class Session:
    """A conversation with `partner`. `read`: a line from the user, EOFError at the end."""

    def __init__(
        self, partner: ChatBackend, messages: Messages, read: Callable[[str], str], parameters: Callable[[dict[str, Any]], None]
    ) -> None:
        """messages: the beginning of the conversation. parameters: raises ConfigError for invalid sampling parameters."""
        self._partner, self._read, self._check = partner, read, parameters
        self.messages = messages

    def run(self) -> None:
        """Run until the end of the input, or /quit."""
        while True:
            try:
                line_entry = self._message()
            except EOFError:
                return
            if not line_entry.strip():
                continue
            if line_entry.startswith("/") and "\n" not in line_entry:
                if line_entry.split()[0] in ("/quit", "/exit", "/bye"):
                    return
                self._command(line_entry)
            else:
                self._say({"role": "user", "content": line_entry})

    def _message(self) -> str:
        line = self._read("> ")
        if line.strip() == BLOCK:
            lines: list[str] = []
            while (line := self._read("... ")).strip() != BLOCK:
                lines.append(line)
            return "\n".join(lines)
        while line.endswith("\\"):
            line = line[:-1] + "\n" + self._read("... ")
        return line

    def _say(self, message: dict[str, Any]) -> None:
        """One message and its answer, and results of the tools it calls. A message that has no answer is forgotten."""
        before = len(self.messages)
        self.messages.append(message)
        while True:
            screen = Screen()
            try:
                answer = self._partner.answer(self.messages, screen.show)
            except KeyboardInterrupt:
                screen.end()
                self._forget(before, "(stopped; that message is forgotten)")
                return
            except RequestError as e:  # too long, say: the conversation so far is still good
                self._forget(before, f"thalweg: error: {e}")
                return
            screen.end()
            self.messages.append(_message_of(answer))
            if not answer.calls or not self._results(answer):
                return

    def _results(self, answer: Message) -> bool:
        """Tool results, typed by the user. False: end of input, or nothing was typed."""
        results = []
        for call in answer.calls:
            try:
                given = self._read(f"result of {call.name}> ")
            except EOFError:
                given = ""
            if not given:
                print("(no result; the call stays unanswered)", file=sys.stderr)
                return False
            results.append({"role": "tool", "tool_call_id": call.id, "name": call.name, "content": given})
        self.messages += results
        return True

    def _forget(self, length: int, why: str) -> None:
        del self.messages[length:]
        print(f"\n{why}", file=sys.stderr)

    # ------------------------------------------------------------ commands

    def _command(self, line_entry: str) -> None:
        name, _, rest = line_entry[1:].partition(" ")
        known = {
            "help": self._help, "clear": self._clear, "system": self._system, "undo": self._undo, "retry": self._retry,
            "set": self._set, "save": self._save,
        }  # fmt: skip
        if name not in known:
            print(f"/{name} is no command; /help lists them", file=sys.stderr)
            return
        try:
            known[name](rest.strip())
        except (ThalwegError, OSError) as e:
            print(f"thalweg: error: {e}", file=sys.stderr)

    def _help(self, _: str) -> None:
        print(HELP, file=sys.stderr)

    def _clear(self, _: str) -> None:
        del self.messages[1 if self.messages and self.messages[0]["role"] == "system" else 0 :]

    def _system(self, text: str) -> None:
        if self.messages and self.messages[0]["role"] == "system":
            del self.messages[0]
        if text:
            self.messages.insert(0, {"role": "system", "content": text})

    def _undo(self, _: str) -> dict[str, Any] | None:
        """Forget the last message of the user, and return it."""
        at = next((i for i in reversed(range(len(self.messages))) if self.messages[i]["role"] == "user"), None)
        if at is None:
            print("(there is no message to forget)", file=sys.stderr)
            return None
        last = self.messages[at]
        del self.messages[at:]
        return last

    def _retry(self, _: str) -> None:
        last = self._undo("")
        if last is not None:
            self._say(last)

    def _set(self, line_entry: str) -> None:
        if line_entry:
            name, _, value = line_entry.partition("=")
            try:
                read = json.loads(value)
            except ValueError:
                read = value
            changed = {**self._partner.sampling, name.strip().replace("-", "_"): read}
            self._check(changed)
            self._partner.sampling = changed
        print(json.dumps(self._partner.sampling), file=sys.stderr)

    def _save(self, file: str) -> None:
        if not file:
            print("/save FILE", file=sys.stderr)
            return
        Path(file).expanduser().write_text(json.dumps(self.messages, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        print(f"({len(self.messages)} messages in {file})", file=sys.stderr)


def _message_of(answer: Message) -> dict[str, Any]:
    """The answer as a message of the conversation."""
    out: dict[str, Any] = {"role": "assistant", "content": answer.content}
    if answer.reasoning:
        out["reasoning"] = out["reasoning_content"] = answer.reasoning
    if answer.calls:
        out["tool_calls"] = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}} for c in answer.calls
        ]
    return out


def read_line(prompt: str) -> str:
    """A line of standard input, with editing and a history in a terminal."""
    if not sys.stdin.isatty():
        return input()
    with contextlib.suppress(ImportError):  # not part of every Python
        import readline  # noqa: F401  (input() edits with it once it is there)
    return input(prompt)
