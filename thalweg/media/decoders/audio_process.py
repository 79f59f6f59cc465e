"""The process in which audio is decoded: `python -m thalweg.media.decoders.audio_process`.

It opens no file once it runs, starts no process, and is killed by the kernel at its deadlines. Error texts of libraries are
not passed on: the error only says that the file cannot be decoded.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from thalweg.host.jobs import TaskRefusedError, serve
from thalweg.media import wav
from thalweg.media.decoders.audio import FILE, AudioTask, Samples
from thalweg.media.resample import resample
from thalweg.media.wav import AudioError

try:
    import soundfile
except (ImportError, OSError):  # OSError: without its library
    soundfile = None

PIECE = 1 << 18
"""Frames decoded at once."""
RATES = (1_000, 768_000)
NEEDED = "only WAV is decoded here; FLAC, OGG and MP3 need the package soundfile: pip install 'thalweg[audio]'"


def decode(task: AudioTask) -> np.ndarray:
    """f32[samples] of one channel. AudioError."""
    if wav.is_wav(task.data):
        found = wav.parse_wav(task.data)
        return _mono(task, found.frames, found.rate, lambda at, n: wav.samples(found, at, n))
    if soundfile is None:
        raise AudioError(f"it is no WAV file, and {NEEDED}")
    try:
        with soundfile.SoundFile(io.BytesIO(task.data)) as file:
            read: Callable[[int, int], Any] = lambda at, n: file.read(n, dtype="float32", always_2d=True)  # noqa: E731
            return _mono(task, file.frames, file.samplerate, read)
    except (soundfile.SoundFileError, RuntimeError, TypeError, ValueError) as e:
        if isinstance(e, AudioError):
            raise
        raise AudioError("it is no audio file that can be decoded: send WAV, FLAC, OGG or MP3") from None


def _mono(task: AudioTask, frames: int, rate: int, read: Callable[[int, int], Any]) -> np.ndarray:
    if not RATES[0] <= rate <= RATES[1]:
        raise AudioError(f"it has {rate} samples a second; {RATES[0]} to {RATES[1]} are taken")
    if frames > task.most_seconds * rate:
        raise AudioError(f"it lasts {frames / rate:.0f} seconds, and at most {task.most_seconds:g} are taken: send it in parts")
    if frames > task.most_samples:
        raise AudioError(f"it has {frames} samples, and at most {task.most_samples} are taken: send it at a lower rate")
    mono, at = np.empty(frames, np.float32), 0
    while at < frames:
        piece = read(at, min(PIECE, frames - at))
        if not len(piece):
            break  # the file has less than its header says
        mono[at : at + len(piece)] = piece.mean(1)
        at += len(piece)
    mono = np.nan_to_num(mono[:at], nan=0.0, posinf=0.0, neginf=0.0)
    return resample(mono, rate, task.rate)


def work(task: AudioTask) -> Samples:
    try:
        return Samples(decode(task).tobytes())
    except AudioError as e:
        raise TaskRefusedError(FILE, str(e)) from None


if __name__ == "__main__":
    sys.exit(serve(AudioTask, work))
