"""What the audio routes need of a model that transcribes. `whisper` and `chat` have the two kinds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from thalweg.host import envs
from thalweg.media.audio_decoder import AudioDecoder
from thalweg.media.audio_windows import AudioWindow
from thalweg.media.mel import RATE
from thalweg.server.audio.protocol import AudioRequest
from thalweg.server.errors import ApiError

if TYPE_CHECKING:
    from thalweg.server.core.admission import Ticket
    from thalweg.server.core.serving import Serving

DECODERS = 2
UNSPACED = "\u2e80"


@dataclass(slots=True)
class WindowedAudio:
    """A clip in windows, each with a prompt."""

    sound: np.ndarray
    """f32[samples] at `rate`."""
    cuts: list[AudioWindow]
    prompts: list[dict[str, Any]]
    language: str = ""
    """Its code. "": unknown."""
    rate: int = RATE
    """Samples per second."""

    @property
    def seconds(self) -> float:
        return self.sound.size / self.rate


class TextFilter:
    """The transcript in the text of an answer: all of it, or what follows a mark."""

    def __init__(self, mark: str = "") -> None:
        self._mark, self._held, self._open = mark, "", not mark

    def push(self, text: str) -> str:
        """The next part of the transcript, for the next part of an answer."""
        if self._open:
            return text
        self._held += text
        _, found, rest = self._held.partition(self._mark)
        if not found:
            return ""
        self._open, self._held = True, ""
        return rest

    def finish(self) -> str:
        """The rest: an answer without the mark is a transcript."""
        rest, self._held = self._held, ""
        return rest


def join_words(before: str, after: str) -> str:
    """Text between two texts: a space, except in scripts without. These begin at the radicals of Chinese."""
    if not before or not after or before[-1].isspace() or after[0].isspace():
        return ""
    return "" if max(before[-1], after[0]) >= UNSPACED else " "


class Recognizer(ABC):
    """A model that transcribes. Made once per server."""

    timed = False
    """Can its transcripts have times?"""
    falls_back = False
    """Can its windows be decoded again, or in order (`protocol.WINDOW_FIELDS`)?"""
    rate: int = RATE
    """Samples per second, as the model reads them."""
    longest: int
    """Samples that it transcribes at once."""
    ended = True
    """Does an end token end a transcript? False: only the end of the audio does."""
    heads = 0
    """Heads that align tokens with audio, for times of words."""

    def __init__(self, serving: Serving) -> None:
        self.serving, self.tokenizer = serving, serving.tokenizer("file")
        self.most_bytes, self._decoder = envs.upload_bytes(), AudioDecoder(DECODERS, envs.audio_seconds())

    @abstractmethod
    def check(self, request: AudioRequest, task: str) -> None:
        """ApiError for fields and tasks that the model does not support. Before anything is decoded."""

    @abstractmethod
    async def prepare(self, request: AudioRequest, sound: np.ndarray, task: str, ticket: Ticket) -> WindowedAudio:
        """Windows and prompts. task: transcribe or translate. ApiError."""

    def open_filter(self, request: AudioRequest) -> TextFilter:
        """Of the answer for one window."""
        return TextFilter()

    def join(self, before: str, after: str) -> str:
        """Text between the transcripts of two windows. Default: none, they have it."""
        return ""

    def limit(self, audio: WindowedAudio) -> int | None:
        """Most tokens of a window, unless a request says another number. None: what the context has room for."""
        return None

    def decode(self, data: bytes) -> np.ndarray:
        """A file's samples at `rate`. For a thread. RequestError."""
        sound = self._decoder.decode(data, self.rate)
        if not sound.size:
            raise ApiError("file: it has no samples", "file")
        return sound
