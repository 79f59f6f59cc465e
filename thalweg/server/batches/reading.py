"""The lines of a file, found by position and a piece at a time: none is in memory before its turn."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

WINDOW = 1 << 15
"""Bytes read by one look. It costs a thread a few milliseconds at most."""
NOT_BLANK = re.compile(rb"\S")


class LineSpan(NamedTuple):
    """Where a line is. number: from 1, blank lines counted. It ends before byte `end`."""

    number: int
    start: int
    end: int


class Cursor:
    """A place in a file that goes on to its end. Lines end with a line feed. Blank ones are passed over."""

    def __init__(self, read: Callable[[int, int], bytes], size: int) -> None:
        """read: bytes from a position up to another. size: bytes of the file."""
        self._read, self._size = read, size
        self._at = 0
        """Bytes looked at."""
        self._begun: int | None = None
        """Start of an incomplete line."""
        self._passed = 0
        """Line ends before that."""

    @property
    def is_done(self) -> bool:
        return self._at >= self._size

    def look(self) -> list[LineSpan]:
        """The lines that end in the next WINDOW bytes."""
        base, out, at = self._at, list[LineSpan](), 0
        window = self._read(base, min(base + WINDOW, self._size))
        while at < len(window):
            if self._begun is None:
                found = NOT_BLANK.search(window, at)
                begun = found.start() if found else len(window)
                self._passed += window.count(b"\n", at, begun)
                if found is None:
                    break
                self._begun, at = base + begun, begun
            end = window.find(b"\n", at)
            if end < 0:
                break
            out.append(self._end_line(base + end))
            at = end + 1
        self._at = base + len(window) if window else self._size
        if self.is_done and self._begun is not None:
            out.append(self._end_line(self._size))
        return out

    def _end_line(self, end: int) -> LineSpan:
        assert self._begun is not None
        self._passed += 1
        result, self._begun = LineSpan(self._passed, self._begun, end), None
        return result
