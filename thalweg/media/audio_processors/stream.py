"""Clips of models that read one vector of audio with each token of a sequence, the answer included."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from thalweg.media.audio_processors.base import AudioProcessor


class StreamAudio(AudioProcessor, frozen=True, kw_only=True):
    """A clip is a prompt. No vector depends on later audio. `token` is the token for an instant without text."""

    whole_prompt: bool = True
    ended: bool = True
    """An end token ends a transcript. False: only the end of the audio does."""

    @property
    @abstractmethod
    def start(self) -> tuple[int, ...]:
        """The prompt of a transcript."""

    @property
    @abstractmethod
    def step(self) -> int:
        """Samples of one token, at `rate`."""

    def problem(self, samples: int) -> str:
        seconds = samples / self.rate
        return "" if seconds <= self.most else f"lasts {seconds:.1f} seconds, and this model accepts {self.most:g} at once"

    @abstractmethod
    def live(self, sound: np.ndarray) -> np.ndarray:
        """As `mel`, of the begin of a stream: only frames of tokens whose samples are all there, and no silence behind."""
