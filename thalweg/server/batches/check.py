"""Check the lines of a file before its batch runs, a piece at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from thalweg.server.errors import ApiError

if TYPE_CHECKING:
    from thalweg.server.batches.reading import Cursor, LineSpan
    from thalweg.server.core.lines import LineRunner

MOST_LINES = 50_000
MOST_ERRORS = 100
"""Wrong lines that a batch which fails names."""


class BatchCheckResult(NamedTuple):
    """total: lines that were read. errors: as a batch says them. Empty: it can run."""

    total: int
    errors: tuple[dict[str, Any], ...]


class Check:
    """One file's check for one endpoint. One thread at a time."""

    def __init__(self, lines: LineRunner, endpoint: str, cursor: Cursor, piece: Callable[[int, int], bytes]) -> None:
        """piece: bytes of the file from a position up to another."""
        self._lines, self._endpoint, self._cursor, self._piece = lines, endpoint, cursor, piece
        self._seen = set[bytes]()
        """Digests of the ids: an id may be long."""
        self._total, self._errors, self._full = 0, list[dict[str, Any]](), False

    @property
    def is_done(self) -> bool:
        return self._full or self._cursor.is_done

    def look(self) -> None:
        """Check the lines of the next piece of the file."""
        for span in self._cursor.look():
            self._total += 1
            if self._total > MOST_LINES:
                words = f"the file has more than {MOST_LINES} lines, the most of a batch; send it in parts"
                self._errors.append(_describe("too_many_lines", None, words))
            else:
                self._line(span)
            self._full = self._total > MOST_LINES or len(self._errors) >= MOST_ERRORS
            if self._full:
                return

    def verdict(self) -> BatchCheckResult:
        """When it has ended."""
        if not self._total:
            self._errors.append(_describe("empty_file", None, "the file has no lines"))
        return BatchCheckResult(self._total, tuple(self._errors))

    def _line(self, span: LineSpan) -> None:
        try:
            self._lines.check_size(span.end - span.start)
            line = self._lines.read(self._piece(span.start, span.end))
            if line.url != self._endpoint:
                raise ApiError(f"url: {line.url!r} is not the batch's endpoint {self._endpoint!r}", "url")
            digest = hashlib.blake2b(line.custom_id.encode("utf-8", "surrogatepass"), digest_size=16).digest()
            if digest in self._seen:
                raise ApiError("custom_id: another line has it too", "custom_id")
            self._seen.add(digest)
        except ApiError as e:
            self._errors.append(_describe("invalid_line", span.number, e.message, e.param))


def _describe(code: str, line: int | None, message: str, param: str | None = None) -> dict[str, Any]:
    return {"code": code, "line": line, "message": message, "param": param}
