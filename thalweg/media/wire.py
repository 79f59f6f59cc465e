"""What goes to the process that reads images and what comes back: length-prefixed MessagePack of two closed types."""

from __future__ import annotations

from typing import Literal

import msgspec

from thalweg.host.confined import framed
from thalweg.media.processors import Processor

Why = Literal["format", "broken", "pixels", "shape", "memory", "library"]


Colour = tuple[int, int, int]
WHITE = (255, 255, 255)


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One image. seconds: processor time. wall: seconds of the clock. memory: bytes over an idle process."""

    data: bytes
    processor: Processor
    most_pixels: int
    seconds: float
    wall: float
    memory: int
    background: Colour = WHITE
    """Shows through what is transparent."""


class Picture(msgspec.Struct, frozen=True):
    """Three bytes a pixel, row by row."""

    width: int
    height: int
    data: bytes


class Done(msgspec.Struct, frozen=True, tag=True):
    """The views that the processor wants of the image. size: its width and height, upright. last: this process ends now. Use
    another."""

    views: list[Picture]
    size: tuple[int, int]
    last: bool = False


class Refused(msgspec.Struct, frozen=True, tag=True):
    """detail: words of ours, never of a library."""

    why: Why
    detail: str = ""
    last: bool = False


def frame(message: Job | Done | Refused) -> bytes:
    """Header and body. ValueError if that is too long."""
    return framed(msgspec.msgpack.encode(message))
