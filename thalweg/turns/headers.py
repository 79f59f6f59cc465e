"""Reads the headers of messages: a header gives the kind of its message."""

from __future__ import annotations

from typing import TYPE_CHECKING

from thalweg.turns.bodies.body import WHITE
from thalweg.turns.format import JsonArgs
from thalweg.turns.modes import Mode, ReasoningMode, some

if TYPE_CHECKING:
    from thalweg.turns.reader import Reader

MOST = 512
"""Characters of a header. Longer text is not a header."""


RECIPIENT = "to="
"""Prefix of a recipient, which may follow the role in a header."""


class HeaderMode(Mode):
    """Before or within a message's header. Text that cannot be a header belongs to the message before."""

    def __init__(self, reader: Reader, terminal: str = "", before: Mode | None = None) -> None:
        """terminal: the one that began the header. "": the prompt began it. before: the mode of the message before."""
        super().__init__(reader)
        header = reader.turn.headers
        assert header is not None
        self._header, self._before = header, before
        self._text: list[str] = []
        self._opened = terminal not in header.closes
        self._bare = not terminal
        """No terminal of a header has been read."""
        self._fresh = terminal == header.open
        """No word of the header has been read, and the role is due."""
        self.terminals = some(header.end, header.open, *header.inside, *header.closes)
        reader.raw = [terminal] if terminal else []

    def text(self, c: str) -> None:
        if c in WHITE and (not self._opened or not self._text):
            return
        self._text.append(c)
        if not self._fits("".join(self._text)):
            self._leave()

    def _fits(self, words: str) -> bool:
        """May this be the beginning of a header?"""
        if not self._opened or len(words) > MOST or "\n" in words:
            return False
        if self._bare:
            return words.startswith(RECIPIENT) or RECIPIENT.startswith(words)
        role = self._header.role.strip(WHITE)
        return not self._fresh or words.startswith(role) or role.startswith(words)

    def _leave(self) -> None:
        """The text is not a header. The message before continues, or content begins."""
        reader, before = self.reader, self._before
        raw, reader.raw, reader.failed = reader.token_text("".join(reader.raw or ())), None, True
        if isinstance(before, ReasoningMode):
            reader.add_reasoning(raw)
            reader.go(before)
        else:
            reader.go(reader.speaking())
            reader.lose(raw)

    def hit(self, terminal: str) -> None:
        reader, header = self.reader, self._header
        if terminal in header.inside:
            self._opened, self._fresh, self._bare = True, False, False
            self._text.append(reader.token_text(terminal))
        elif terminal != header.end:
            self._text, reader.raw, self._bare = [], [terminal], False
            self._opened = self._fresh = terminal == header.open
        elif self._opened:
            self._begin("".join(self._text))
        else:
            self._leave()

    def _begin(self, words: str) -> None:
        """The body of the message that the header describes."""
        reader, header = self.reader, self._header
        if isinstance(self._before, ReasoningMode):
            reader.think_end()
        reader.note_terminal()
        name = _recipient(words, header.call) if header.call and reader.calls is not None else ""
        if name:
            if reader.commit(name):
                reader.body(JsonArgs())
            return
        reader.raw = None
        if header.reasoning in words:
            reader.think()
        else:
            reader.go(reader.speaking())

    def finish(self) -> None:
        if self.reader.heard or self._before is not None:  # a header without its message
            self.reader.raw = None


def _recipient(words: str, before: str) -> str:
    """The name of the tool in a header, or ""."""
    at = words.find(before)
    rest = words[at + len(before) :] if at >= 0 else ""
    for i, c in enumerate(rest):
        if c in WHITE or c in "<":
            return rest[:i]
    return rest
