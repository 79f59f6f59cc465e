"""Converts the arguments of calls in a conversation for templates.

A model may be cut off in the middle of a call, and clients send such arguments back with the conversation. Therefore no text is
rejected here. Templates get an object if the text is a JSON object, and an `ArgumentText` otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

MOST_DEPTH = 64
"""Depth of nested values. Deeper arguments stay text."""
LARGEST = 2**63
"""Bound of integers. Larger ones become floats, because the renderer's messages have 64-bit integers."""


class ArgumentText(Mapping[str, Any]):
    """Arguments other than a JSON object: cut off, malformed, or a value of another type.

    Templates that iterate over them find none. Templates that print them, add them to a text, or pass them through `tojson`,
    get the text."""

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
    """The JSON object in the text `given`, or the text itself if it has none. Empty text and null are {}.

    Line breaks inside strings are accepted, because models write them. TypeError for anything except text and objects."""
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
    """An integer, or a float beyond `LARGEST`. ValueError for more digits than Python parses."""
    value = int(digits)
    return value if -LARGEST <= value < LARGEST else float(value)


def _is_plain(value: Any, depth: int = 0) -> bool:
    """Is its depth within the limit, and are its strings encodable as UTF-8?"""
    if isinstance(value, str):
        return value.isascii() or not any("\ud800" <= c <= "\udfff" for c in value)
    if depth > MOST_DEPTH:
        return False
    if isinstance(value, dict):
        return all(_is_plain(k) and _is_plain(v, depth + 1) for k, v in value.items())
    return all(_is_plain(v, depth + 1) for v in value) if isinstance(value, list) else True
