"""Tasks of the audio decoding process (`audio_process`), and the error messages of failed tasks."""

from __future__ import annotations

import msgspec

from thalweg.host.jobs import MEMORY as NO_MEMORY
from thalweg.media.decoders.base import FailureWords

PROCESS = "thalweg.media.decoders.audio_process"
FILE = "file"
WORDS = FailureWords(
    overran="decoding it took longer than {seconds} seconds; it was stopped",
    crashed="decoding it crashed its process",
    lost="the audio decoding process was lost; try again",
    refusals={FILE: "{detail}", NO_MEMORY: "decoding it takes more than {memory} MiB of memory"},
)


class AudioTask(msgspec.Struct, frozen=True):
    data: bytes
    rate: int
    """Samples a second of the output."""
    most_seconds: float
    most_samples: int
    """In the file, of one channel."""


class Samples(msgspec.Struct, frozen=True):
    samples: bytes
    """f32, one channel."""
