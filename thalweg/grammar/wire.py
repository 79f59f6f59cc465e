"""What goes to the process that judges grammars, and what comes back: length-prefixed MessagePack of closed types."""

from __future__ import annotations

from typing import Literal

import msgspec

from thalweg.grammar.source import Asked, Source, Vocabulary
from thalweg.host.confined import framed


class Job(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One grammar to judge. seconds: of processor time. wall: of the clock. memory: bytes over those of an idle process."""

    asked: Asked
    seconds: float
    wall: float
    memory: int


class Judged(msgspec.Struct, frozen=True, tag=True):
    """The grammar compiles, and has a first mask. last: this process ends now."""

    source: Source
    last: bool = False


class Refused(msgspec.Struct, frozen=True, tag=True):
    """kind: the grammar is not served, or took too much."""

    kind: Literal["grammar", "limit"]
    why: str
    pointer: str = ""
    last: bool = False


def frame(message: Vocabulary | Job | Judged | Refused) -> bytes:
    return framed(msgspec.msgpack.encode(message))
