"""Audio clips of conversations: bytes of a file or samples in, log-mel spectra and a digest out."""

from __future__ import annotations

import msgspec
import numpy as np

from thalweg.errors import RequestError
from thalweg.host import envs
from thalweg.media.audio_decoder import AudioDecoder
from thalweg.media.audio_processors import AudioProcessor
from thalweg.media.digests import Digests


class ProcessedAudio(msgspec.Struct, frozen=True):
    """The spectrum of a clip and its unique digest. The digest covers the processor's settings, the spectrum's shape and its
    bytes."""

    mel: np.ndarray  # f32[bins, frames]
    frames: int
    """Frames of the clip itself; the spectrum may be padded."""
    digest: bytes
    prefix_digests: tuple[bytes, ...] = ()
    """As `Input.prefix_digests`."""


class AudioLoader:
    """Reads audio clips for one model. Thread-safe. Its processes start on first use, and end with it."""

    def __init__(self, processor: AudioProcessor, cells: int) -> None:
        self._processor, self._gate = processor, AudioDecoder(cells, envs.audio_seconds())
        self._most, self._seconds = envs.upload_bytes(), envs.audio_seconds()
        self._digests, self.rate = Digests("audio", processor), processor.rate

    def close(self) -> None:
        self._gate.close()

    def read(self, data: bytes, at: str) -> ProcessedAudio:
        """Of a file's bytes. at: the place in the request. RequestError, UnavailableError."""
        if len(data) > self._most:
            raise RequestError(f"{at}: more than {self._most / (1 << 20):g} MiB; send a smaller file", at)
        return self.of(self._gate.decode(data, self.rate, at), at)

    def of(self, samples: np.ndarray, at: str) -> ProcessedAudio:
        """Of f32[samples] at `rate`. RequestError."""
        if samples.size > self._seconds * self.rate:
            seconds = samples.size / self.rate
            raise RequestError(f"{at}: lasts {seconds:.0f} seconds, and at most {self._seconds:g} are accepted", at)
        if problem := self._processor.problem(samples.size):
            raise RequestError(f"{at}: {problem}", at)
        mel, frames = self._processor.mel(samples), self._processor.frames(samples.size)
        return process_audio(self._processor, self._digests, mel, frames)


def process_audio(processor: AudioProcessor, digests: Digests, mel: np.ndarray, frames: int) -> ProcessedAudio:
    """mel: f32[bins, frames and padding] of `processor`. digests: of the reader."""
    each = processor.prefix
    prefixes = digests.of_prefixes([mel[:, at : at + each] for at in range(0, mel.shape[1], each)]) if each else ()
    return ProcessedAudio(mel, frames, digests.of_arrays(frames, mel), prefixes)
