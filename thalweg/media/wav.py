"""WAV files: PCM of 8, 16, 24 and 32 bits, and floats. Sizes are checked before anything is read by them."""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np

PCM, FLOAT, EXTENSIBLE = 1, 3, 0xFFFE
MOST_CHANNELS = 64


class AudioError(ValueError):
    """The fault of a file, as an error message for the client."""


class Wav(NamedTuple):
    """Fields of the header."""

    kind: int
    channels: int
    rate: int
    bits: int
    data: memoryview
    """Whole frames."""

    @property
    def frames(self) -> int:
        return len(self.data) // (self.channels * self.bits // 8)


def is_wav(data: bytes) -> bool:
    return data[:4] in (b"RIFF", b"RF64") and data[8:12] == b"WAVE"


def parse_wav(data: bytes) -> Wav:
    """AudioError for a truncated file, or one of another kind."""
    view, at, form = memoryview(data), 12, None
    while at + 8 <= len(data):
        name, size = bytes(view[at : at + 4]), struct.unpack_from("<I", data, at + 4)[0]
        at += 8
        if name == b"fmt ":
            form = _format(view[at : at + size])
        elif name == b"data":
            if form is None:
                raise AudioError("a WAV file with samples before their format")
            kind, channels, rate, bits = form
            frame = channels * bits // 8
            # Streams leave the size open: then the samples go on to the end.
            size = min(size, len(data) - at)
            return Wav(kind, channels, rate, bits, view[at : at + size // frame * frame])
        at += size + size % 2
    raise AudioError("a WAV file without samples")


def _format(chunk: memoryview) -> tuple[int, int, int, int]:
    if len(chunk) < 16:
        raise AudioError("a WAV file with a truncated format")
    kind, channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", chunk)
    if kind == EXTENSIBLE and len(chunk) >= 26:
        kind = struct.unpack_from("<H", chunk, 24)[0]
    if not 1 <= channels <= MOST_CHANNELS:
        raise AudioError(f"a WAV file of {channels} channels; at most {MOST_CHANNELS} are taken")
    if (kind, bits) not in ((PCM, 8), (PCM, 16), (PCM, 24), (PCM, 32), (FLOAT, 32), (FLOAT, 64)):
        raise AudioError(f"a WAV file of format {kind} with {bits} bits; PCM of 8, 16, 24, 32 bits and floats are read")
    return kind, channels, rate, bits


def samples(wav: Wav, first: int, frames: int) -> np.ndarray:
    """f32[frames, channels] in -1..1, from frame `first` on."""
    each = wav.channels * wav.bits // 8
    raw = wav.data[first * each : (first + frames) * each]
    result: np.ndarray
    if wav.kind == FLOAT:
        result = np.frombuffer(raw, "<f4" if wav.bits == 32 else "<f8").astype(np.float32)
    elif wav.bits == 8:
        result = (np.frombuffer(raw, np.uint8).astype(np.float32) - 128) / 128
    elif wav.bits == 24:
        bytes_ = np.frombuffer(raw, np.uint8).reshape(-1, 3)
        wide = np.zeros((len(bytes_), 4), np.uint8)
        wide[:, 1:] = bytes_
        result = (wide.view("<i4")[:, 0] / 2**31).astype(np.float32)
    else:
        result = (np.frombuffer(raw, f"<i{wav.bits // 8}") / 2 ** (wav.bits - 1)).astype(np.float32)
    return result.reshape(-1, wav.channels)
