"""Transcripts of models that read one vector of audio with each token (Voxtral Realtime, Kyutai): of whole clips, and of audio
that still comes in."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import numpy as np

from thalweg.engine.client.media import MEDIA
from thalweg.media.audio_loader import process_audio
from thalweg.media.audio_processors.stream import StreamAudio
from thalweg.media.audio_windows import windows
from thalweg.media.digests import Digests
from thalweg.media.kinds.base import MediaItem, MediaSource
from thalweg.media.mel import RATE
from thalweg.media.resample import count_later, resample
from thalweg.server.audio.plain import check_plain
from thalweg.server.audio.protocol import AudioRequest
from thalweg.server.audio.recognizer import Recognizer, WindowedAudio, join_words
from thalweg.server.errors import ApiError
from thalweg.server.http.middleware import current_scope, tenant_of

if TYPE_CHECKING:
    from thalweg.server.core.admission import Ticket
    from thalweg.server.core.serving import Serving

KIND = "audio"
LIVE_SECONDS = 30
"""The longest window of a stream. Each round encodes all of its audio so far."""
ROUND = 6
"""Tokens that a round of a stream has at least, 80 ms each."""


class StreamRecognizer(Recognizer):
    def __init__(self, serving: Serving) -> None:
        super().__init__(serving)
        model, media = serving.engine.config.model, serving.engine.media
        processor = media.processors.get(KIND) if media is not None else None
        assert isinstance(processor, StreamAudio), "such models have no other"
        self.media, self.processor, self.digests = media, processor, Digests(KIND, processor)
        self.ended = processor.ended
        self.rate, silence = processor.rate, processor.count(processor.frames(0))
        self.longest = min(int(processor.most * self.rate), (model.max_len - silence) * processor.step)
        if self.longest < self.rate:
            raise ApiError(
                f"model: a context of {model.max_len} tokens has no room for a second of audio; raise --max-model-len", "model"
            )

    def check(self, request: AudioRequest, task: str) -> None:
        check_plain(request, task, "this model detects the language; omit it")

    async def prepare(self, request: AudioRequest, sound: np.ndarray, task: str, ticket: Ticket) -> WindowedAudio:
        assert self.media is not None
        cuts = windows(sound, self.longest, self.rate)
        sources = [MediaSource(KIND, "file", samples=sound[w.begin : w.end]) for w in cuts]
        items = await self.media.read_async(sources, tenant_of(current_scope.get()))
        return WindowedAudio(sound, cuts, [self.media.whole_prompt(item) for item in items], rate=self.rate)

    def join(self, before: str, after: str) -> str:
        return join_words(before, after)


class LiveWindow:
    """A window of audio that still comes in. Its tokens equal those of the complete window, as no vector depends on later
    audio."""

    def __init__(self, recognizer: StreamRecognizer) -> None:
        self._recognizer, self._processor = recognizer, recognizer.processor
        self._digests = recognizer.digests
        self._sound = np.zeros(0, np.float32)
        self._ids = list(recognizer.processor.start)
        self._held: list[int] = []
        """Tokens whose text may end within a character."""
        self._written = False
        self.longest = min(recognizer.longest * RATE // recognizer.rate, LIVE_SECONDS * RATE)
        """Samples at RATE, as clients send them."""
        self._round = -(-ROUND * self._processor.step * RATE // recognizer.rate)

    @property
    def has_audio(self) -> bool:
        return bool(self._sound.size)

    @property
    def prompt_tokens(self) -> int:
        return len(self._processor.start)

    def take(self, waiting: np.ndarray, final: bool) -> tuple[int, bool]:
        """(samples to take of those that wait, whether the window is complete with them). 0: more must come first. Windows are
        those of the whole audio (`audio_windows.windows`)."""
        room, search = self.longest - self._sound.size, min(self.longest // 8, RATE)
        if final and waiting.size <= room:
            return waiting.size, True
        if waiting.size > room:
            both = np.concatenate((self._sound, waiting[: room + 1]))
            return windows(both, self.longest, RATE)[0].end - self._sound.size, True
        count = min(waiting.size, room - search)
        return (count, False) if count >= min(self._round, room - search) and count > 0 else (0, False)

    async def push(self, sound: np.ndarray, complete: bool) -> dict[str, Any] | None:
        """The prompt of the next round. None: too little has come."""
        self._sound = np.concatenate((self._sound, sound))
        mel = await asyncio.to_thread(self._read, self._sound, complete)
        if self._processor.count(mel.shape[1]) <= len(self._ids):
            return None
        value = process_audio(self._processor, self._digests, mel, mel.shape[1])
        return {"prompt_token_ids": list(self._ids), MEDIA: [MediaItem(KIND, value)]}

    def _read(self, sound: np.ndarray, complete: bool) -> np.ndarray:
        """The features of samples at RATE. Resampled samples near an end that is not the last change with later ones."""
        wave = resample(sound, RATE, self._processor.rate)
        if complete:
            return self._processor.mel(wave)
        known = (sound.size - count_later(RATE, self._processor.rate)) * self._processor.rate // RATE
        return self._processor.live(wave[: max(0, known)])

    def is_first_text(self, text: str) -> bool:
        """Is this the first text of the window?"""
        first, self._written = bool(text) and not self._written, self._written or bool(text)
        return first

    def write(self, ids: list[int], last: bool) -> str:
        """The text of the tokens of a round. last: no more follow."""
        self._ids += ids
        self._held += ids
        text = self._recognizer.tokenizer.decode(self._held, True)
        if text.endswith("\ufffd") and not last:
            return ""
        self._held = []
        return text
