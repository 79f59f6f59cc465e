"""Transcripts of models with one language and no tasks: their prompt is a start token."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from thalweg.config import SpeechConfig
from thalweg.media.audio_windows import windows
from thalweg.media.mel import HOP, RATE
from thalweg.server.audio.protocol import AudioRequest
from thalweg.server.audio.recognizer import Recognizer, WindowedAudio, join_words
from thalweg.server.errors import ApiError

if TYPE_CHECKING:
    from thalweg.server.core.admission import Ticket
    from thalweg.server.core.serving import Serving

TOKENS = {"start": 6.5}
"""`SpeechConfig.form` -> tokens per second of speech, at most. Of Moonshine, as its authors recommend: longer transcripts
repeat themselves."""


def check_plain(request: AudioRequest, task: str, language: str) -> None:
    """ApiError for fields of models whose prompt is always the same. language: the reason why they reject a language."""
    if task == "translate":
        raise ApiError("model: translation is not supported by this model; use /v1/audio/transcriptions", "model")
    if request.has_timestamps:
        form = request.response_format
        raise ApiError(f"response_format: {form}: this model gives no times; use json or text", "response_format")
    if request.language:
        raise ApiError(f"language: {language}", "language")
    if request.prompt.strip():
        raise ApiError("prompt: this model reads no text before a transcript; omit it", "prompt")


class PlainRecognizer(Recognizer):
    def __init__(self, serving: Serving) -> None:
        super().__init__(serving)
        speech = serving.engine.config.model.speech
        assert speech is not None
        self._config: SpeechConfig = speech
        self.longest = speech.frames * HOP

    def check(self, request: AudioRequest, task: str) -> None:
        check_plain(request, task, "this model has one language; omit it")

    async def prepare(self, request: AudioRequest, sound: np.ndarray, task: str, ticket: Ticket) -> WindowedAudio:
        cuts = windows(sound, self.longest, RATE)
        ids = list(self._config.start)
        prompts = [{"prompt_token_ids": ids, "multi_modal_data": {"audio": sound[w.begin : w.end]}} for w in cuts]
        return WindowedAudio(sound, cuts, prompts)

    def limit(self, audio: WindowedAudio) -> int | None:
        most = TOKENS.get(self._config.form)
        return None if most is None else math.ceil(most * max(w.end - w.begin for w in audio.cuts) / RATE)

    def join(self, before: str, after: str) -> str:
        return join_words(before, after)
