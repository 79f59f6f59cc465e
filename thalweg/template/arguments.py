"""Arguments of calls in a conversation, as templates read them.

A server hands out what a model wrote, and a model may be cut off in the middle of a call. Such arguments come back with the
conversation, so no text is refused here. Templates get an object where the text is one. Any other text is `ArgumentText`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

MOST_DEPTH = 64
"""Values inside one another. Deeper arguments stay text."""
LARGEST = 2**63
"""Of a whole number. Larger ones become floats, because the renderer's messages hold 64 bits."""


class ArgumentText(Mapping[str, Any]):
    """Arguments that are no JSON object: cut off, broken, or a value of another kind.

    Templates that iterate arguments find none. Templates that print them, add them to a text, or pass them through
    `tojson`, get the text."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __getitem__(self, name: str) -> Any:
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __bool__(self) -> bool:
        return True

    def __str__(self) -> str:
        return self._text

    def __add__(self, other: object) -> str:
        return self._text + str(other)

    def __radd__(self, other: object) -> str:
        return str(other) + self._text


def read_arguments(given: Any) -> dict[str, Any] | str:
    """The object that `given` is the JSON text of, or the text itself where it is none. Nothing and null are {}.

    Line breaks inside strings are read, because models write them. TypeError for what is neither text nor an object."""
    if given is None:
        return {}
    if isinstance(given, Mapping):
        return dict(given)
    if not isinstance(given, str):
        raise TypeError(type(given).__name__)
    if given.strip() in ("", "null"):
        return {}
    try:
        read = json.loads(given, strict=False, parse_int=_number)
    except (ValueError, RecursionError):
        return given
    return read if isinstance(read, dict) and _is_plain(read) else given


def _number(digits: str) -> int | float:
    """ValueError for more digits than Python reads."""
    value = int(digits)
    return value if -LARGEST <= value < LARGEST else float(value)


def _is_plain(value: Any, depth: int = 0) -> bool:
    """Is it nested moderately, of strings that UTF-8 can hold?"""
    if isinstance(value, str):
        return value.isascii() or not any("\ud800" <= c <= "\udfff" for c in value)
    if depth > MOST_DEPTH:
        return False
    if isinstance(value, dict):
        return all(_is_plain(k) and _is_plain(v, depth + 1) for k, v in value.items())
    return all(_is_plain(v, depth + 1) for v in value) if isinstance(value, list) else True
