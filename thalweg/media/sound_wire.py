"""What crosses to the process that decodes sounds, and back."""

from __future__ import annotations

import msgspec

from thalweg.host.confined import framed


class Job(msgspec.Struct, frozen=True):
    data: bytes
    rate: int
    """Samples a second that are wanted."""
    most_seconds: float
    most_samples: int
    """In the file, of one channel."""
    seconds: float
    """Processor time."""
    wall: float
    memory: int


class Heard(msgspec.Struct, frozen=True, tag=True):
    samples: bytes
    """f32, one channel."""
    last: bool = False
    """The process ends."""


class Refused(msgspec.Struct, frozen=True, tag=True):
    message: str
    last: bool = False


def frame(message: Job | Heard | Refused) -> bytes:
    return framed(msgspec.msgpack.encode(message))
