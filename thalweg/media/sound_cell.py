"""The process in which sounds are decoded: `python -m thalweg.media.sound_cell`, jobs on stdin, answers on stdout.

It opens no file once it runs, starts no process, and is killed by the kernel at its deadlines. What a library says of a file is
not told: only that it is no such file.
"""

from __future__ import annotations

import gc
import io
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import numpy as np

from thalweg.host.confined import Confined
from thalweg.media import wav
from thalweg.media.resample import resample
from thalweg.media.sound_wire import Heard, Job, Refused, frame
from thalweg.media.wav import SoundError

try:
    import soundfile
except (ImportError, OSError):  # OSError: without its library
    soundfile = None

PIECE = 1 << 18
"""Frames decoded at once."""
RATES = (1_000, 768_000)
KEPT_BYTES = 64 << 20
"""Bytes of growth after which a process retires."""
NEEDED = "only WAV is decoded here; FLAC, OGG and MP3 need the package soundfile: pip install 'thalweg[audio]'"


def decoded(job: Job) -> np.ndarray:
    """f32[samples] of one channel. SoundError."""
    if wav.is_wav(job.data):
        found = wav.opened(job.data)
        return _mono(job, found.frames, found.rate, lambda at, n: wav.samples(found, at, n))
    if soundfile is None:
        raise SoundError(f"it is no WAV file, and {NEEDED}")
    try:
        with soundfile.SoundFile(io.BytesIO(job.data)) as file:
            read: Callable[[int, int], Any] = lambda at, n: file.read(n, dtype="float32", always_2d=True)  # noqa: E731
            return _mono(job, file.frames, file.samplerate, read)
    except (soundfile.SoundFileError, RuntimeError, TypeError, ValueError) as e:
        if isinstance(e, SoundError):
            raise
        raise SoundError("it is no sound that can be decoded: send WAV, FLAC, OGG or MP3") from None


def _mono(job: Job, frames: int, rate: int, read: Callable[[int, int], Any]) -> np.ndarray:
    if not RATES[0] <= rate <= RATES[1]:
        raise SoundError(f"it has {rate} samples a second; {RATES[0]} to {RATES[1]} are taken")
    if frames > job.most_seconds * rate:
        raise SoundError(f"it lasts {frames / rate:.0f} seconds, and at most {job.most_seconds:g} are taken: send it in parts")
    if frames > job.most_samples:
        raise SoundError(f"it has {frames} samples, and at most {job.most_samples} are taken: send it at a lower rate")
    mono, at = np.empty(frames, np.float32), 0
    while at < frames:
        piece = read(at, min(PIECE, frames - at))
        if not len(piece):
            break  # the file has less than its header says
        mono[at : at + len(piece)] = piece.mean(1)
        at += len(piece)
    mono = np.nan_to_num(mono[:at], nan=0.0, posinf=0.0, neginf=0.0)
    return resample(mono, rate, job.rate)


def answer(process: Confined, job: Job) -> Heard | Refused:
    with process.limited(job.seconds, job.wall, job.memory):
        try:
            samples = decoded(job).tobytes()
        except MemoryError:
            process.limit_memory(None)
            return Refused(f"decoding it takes more than {job.memory >> 20} MiB of memory", last=True)
        except SoundError as e:
            return Refused(str(e))
    return Heard(samples, last=process.grown() > KEPT_BYTES)


def main() -> int:
    process = Confined()
    gc.freeze()
    return process.serve(msgspec.msgpack.Decoder(Job).decode, partial(answer, process), frame)


if __name__ == "__main__":
    sys.exit(main())
