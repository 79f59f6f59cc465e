"""Marks: tokens in running text as surrogate pairs, which decoded text never contains.

A reader of text can thus distinguish a token from the same letters spelled out. The pair encodes the token's id as UTF-16
would: 10 bits in each half.
"""

from __future__ import annotations

MOST = 1 << 20
"""Ids from here on have no mark."""
HIGH, LOW = 0xD800, 0xDC00


def mark(id: int) -> str:
    """The mark of a token. ValueError for an id without one."""
    if not 0 <= id < MOST:
        raise ValueError(f"token id {id} has no mark")
    return chr(HIGH + (id >> 10)) + chr(LOW + (id & 1023))


def id_of(pair: str) -> int:
    """The token of a mark."""
    return (ord(pair[0]) - HIGH << 10) + ord(pair[1]) - LOW


def is_half(c: str) -> bool:
    """Is the character half of a mark?"""
    return "\ud800" <= c <= "\udfff"
