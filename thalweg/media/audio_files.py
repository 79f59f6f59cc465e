"""Samples as files: WAV and PCM here, other formats by PyAV. Each encoder writes as samples come."""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from importlib.util import find_spec
from typing import Any, cast

import numpy as np

OPEN = 0xFFFFFFFF
"""The size in the header of a WAV file whose end is not known."""
OPUS_RATE = 48_000
BIT_RATE = 64_000
COMPRESSED = {"mp3": ("mp3", "libmp3lame"), "opus": ("ogg", "libopus"), "aac": ("adts", "aac"), "flac": ("flac", "flac")}
"""Format -> names of PyAV's container and codec."""
TYPES = {
    "mp3": "audio/mpeg", "opus": "audio/ogg", "aac": "audio/aac", "flac": "audio/flac", "wav": "audio/wav", "pcm": "audio/pcm",
}  # fmt: skip


class SampleEncoder(ABC):
    """Of one file with one channel. Not thread-safe."""

    @abstractmethod
    def write(self, samples: np.ndarray) -> bytes:
        """The next bytes of the file. samples: f32[n] between -1 and 1."""

    def close(self) -> bytes:
        """Its last bytes."""
        return b""


class PcmEncoder(SampleEncoder):
    """16-bit samples, low byte first."""

    def write(self, samples: np.ndarray) -> bytes:
        return to_int16(samples).tobytes()


class WavEncoder(SampleEncoder):
    def __init__(self, rate: int) -> None:
        self._rate, self._begun = rate, False

    def write(self, samples: np.ndarray) -> bytes:
        head = b"" if self._begun else wav_header(self._rate, None)
        self._begun = True
        return head + to_int16(samples).tobytes()


class _WriteOnlyFile:
    """A file for PyAV that cannot seek."""

    def __init__(self) -> None:
        self._data = bytearray()

    def write(self, data: bytes) -> int:
        self._data += data
        return len(data)

    def take(self) -> bytes:
        taken = bytes(self._data)
        self._data.clear()
        return taken


class CompressedEncoder(SampleEncoder):
    def __init__(self, form: str, rate: int) -> None:
        import av

        container, codec = COMPRESSED[form]
        self._sink, self._rate, self._at = _WriteOnlyFile(), rate, 0
        options = {"write_xing": "0"} if form == "mp3" else {}
        self._file: Any = av.open(self._sink, "w", format=container, options=options)
        written = OPUS_RATE if form == "opus" else rate
        self._stream = cast(Any, self._file.add_stream(codec, rate=written, layout="mono"))
        if form != "flac":
            self._stream.bit_rate = BIT_RATE

    def write(self, samples: np.ndarray) -> bytes:
        import av

        frame = av.AudioFrame.from_ndarray(to_int16(samples)[None], format="s16", layout="mono")
        frame.sample_rate, frame.pts = self._rate, self._at
        self._at += len(samples)
        self._file.mux(self._stream.encode(frame))
        return self._sink.take()

    def close(self) -> bytes:
        self._file.mux(self._stream.encode(None))
        self._file.close()
        return self._sink.take()


def missing_package(form: str) -> str:
    """The package that writes this format and is not installed. "": none is missing."""
    return "av" if form in COMPRESSED and find_spec("av") is None else ""


def has_rate(form: str, rate: int) -> bool:
    """May a file of this format, whose package is installed, have so many samples per second?"""
    if form not in COMPRESSED or form == "opus":  # an Opus file is resampled
        return True
    import av

    rates = av.Codec(COMPRESSED[form][1], "w").audio_rates
    return rates is None or rate in rates


def open_encoder(form: str, rate: int) -> SampleEncoder:
    """rate: samples per second."""
    if form == "pcm":
        return PcmEncoder()
    return WavEncoder(rate) if form == "wav" else CompressedEncoder(form, rate)


def wav_header(rate: int, count: int | None) -> bytes:
    """Of 16-bit samples of one channel. count: of samples. None: the file is written while it is read."""
    size = OPEN if count is None else 2 * count
    whole = OPEN if count is None else 36 + size
    return struct.pack("<4sI8sIHHIIHH4sI", b"RIFF", whole, b"WAVEfmt ", 16, 1, 1, rate, 2 * rate, 2, 16, b"data", size)


def to_int16(samples: np.ndarray) -> np.ndarray:
    result: np.ndarray = np.rint(np.clip(samples, -1, 1) * 32767).astype("<i2")
    return result
