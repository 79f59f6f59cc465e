"""The delimiters of a turn's reasoning, for callers that skip reasoning without a reader."""

from __future__ import annotations

from thalweg.turns.bind import BoundTurnFormat
from thalweg.turns.reader import Reader


def aside_of(bound: BoundTurnFormat, prompt: str) -> tuple[list[str], str, bool] | None:
    """Delimiters of the reasoning that a turn after this prompt may begin with: (texts that begin it, text that ends it, has
    the prompt begun it?). None: no reasoning."""
    header = bound.turn.headers
    if header is not None:
        channel = header.inside[0] if header.inside else ""
        return [channel + header.reasoning + header.end], header.closes[0], False
    reader = Reader(bound, prompt)
    if not reader.thoughts or (reader.heard and not reader.thinking):
        return None
    return list(reader.thoughts[:-1]), reader.thoughts[-1], reader.thinking
