"""Transcripts of models that read audio in conversations (`media.audio_processors.transcribers`)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from thalweg.engine.client.media import MEDIA
from thalweg.media.audio_processors import AudioProcessor
from thalweg.media.audio_processors.transcribers import TRANSCRIBERS
from thalweg.media.audio_windows import windows
from thalweg.media.kinds.base import MediaItem, MediaSource
from thalweg.media.mel import RATE
from thalweg.server.audio.protocol import AudioRequest
from thalweg.server.audio.recognizer import Recognizer, TextFilter, WindowedAudio, join_words
from thalweg.server.audio.tokens import read_language
from thalweg.server.errors import ApiError
from thalweg.server.http.middleware import current_scope, tenant_of

if TYPE_CHECKING:
    from thalweg.server.core.admission import Ticket
    from thalweg.server.core.serving import Serving

SAMPLE = 30
"""Seconds by which the placeholders of a second are counted."""
KIND = "audio"


class ChatRecognizer(Recognizer):
    def __init__(self, serving: Serving) -> None:
        super().__init__(serving)
        model, media = serving.engine.config.model, serving.engine.media
        self._row, self._media = TRANSCRIBERS[model.architecture], media
        processor = media.processors.get(KIND) if media is not None else None
        if not isinstance(processor, AudioProcessor):
            raise ApiError("model: it is served without its audio encoder; restart it without --language-model-only", "model")
        shown = processor.marker or self.tokenizer.token_of(processor.token)
        self._template = self._row.template.replace("AUDIO }}", f"{json.dumps(shown)} }}}}") or None
        per_second = processor.count(processor.frames(SAMPLE * RATE)) / SAMPLE
        room = model.max_len / 2 / per_second  # the rest is for the transcript
        self.longest = int(min(self._row.seconds, processor.most, room) * RATE)

    def check(self, request: AudioRequest, task: str) -> None:
        if task == "translate" and not self._row.translation:
            raise ApiError("model: translation is not supported by this model; use /v1/audio/transcriptions", "model")
        if request.has_timestamps:
            form = request.response_format
            raise ApiError(f"response_format: {form}: this model gives no times; use json or text", "response_format")
        if request.language and not self._row.languages:
            raise ApiError("language: this model detects the language; omit it", "language")
        if request.language:
            read_language(request.language, self._row.languages)
        if request.prompt.strip() and not self._row.context:
            raise ApiError("prompt: this model reads no text before a transcript; omit it", "prompt")

    def open_filter(self, request: AudioRequest) -> TextFilter:
        return TextFilter("" if request.language else self._row.mark)

    def join(self, before: str, after: str) -> str:
        return join_words(before, after)

    async def prepare(self, request: AudioRequest, sound: np.ndarray, task: str, ticket: Ticket) -> WindowedAudio:
        assert self._media is not None
        cuts = windows(sound, self.longest, RATE)
        sources = [MediaSource(KIND, "file", samples=sound[w.begin : w.end]) for w in cuts]
        items = await self._media.read_async(sources, tenant_of(current_scope.get()))
        language = read_language(request.language, self._row.languages) if request.language else ""
        prompts = [await self._prompt(request, item, task, language) for item in items]
        return WindowedAudio(sound, cuts, prompts, language)

    async def _prompt(self, request: AudioRequest, item: MediaItem, task: str, language: str) -> dict[str, Any]:
        """The rendered conversation of one window."""
        assert self._media is not None
        row, chat, conversation = self._row, self.serving.engine.chat, self.serving.conversation
        assert chat is not None, "there is a tokenizer"
        if not row.template and chat.templates.pick(False) is None:
            raise ApiError("model: its files have no chat template; start the server with --chat-template", "model")
        words = row.translation if task == "translate" else row.instruction
        parts = [{"type": KIND}, *([{"type": "text", "text": words}] if words else [])]
        system = [{"role": "system", "content": request.prompt.strip()}] if request.prompt.strip() else []
        messages = [*system, {"role": "user", "content": parts}]
        prompt = await chat.prompt_async(
            lambda: (messages, None),
            template=self._template,
            content_format=None if row.template else conversation.format,
            kwargs={"language": language} if row.template else self.serving.settings.default_chat_template_kwargs or {},
            expand=self._media.expand([item]),
        )
        if language and row.prefill:
            begin = self.tokenizer.encode(row.prefill.format(row.languages[language]), False)
            prompt = {**prompt, "prompt_token_ids": [*prompt["prompt_token_ids"], *begin]}
        return {**prompt, MEDIA: [item]}
