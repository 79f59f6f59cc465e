"""Whisper: its prompts, the detection of the language, and transcripts with times."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from thalweg.config import SpeechConfig
from thalweg.media.audio_windows import AudioWindow, windows
from thalweg.media.mel import HOP, RATE, LogMel, log_mel
from thalweg.params import RequestOutputKind, SamplingParams
from thalweg.server.audio.fallback import WindowDecoder, read_rules
from thalweg.server.audio.protocol import AudioRequest
from thalweg.server.audio.recognizer import Recognizer, WindowedAudio
from thalweg.server.audio.tokens import FIRST_WITHIN, WhisperTokens
from thalweg.server.core.job import GenerationJob

if TYPE_CHECKING:
    from thalweg.server.core.admission import Ticket
    from thalweg.server.core.serving import Serving


class WhisperRecognizer(Recognizer):
    timed = falls_back = True

    def __init__(self, serving: Serving) -> None:
        super().__init__(serving)
        model = serving.engine.config.model
        assert model.speech is not None
        self.config: SpeechConfig = model.speech
        self.heads, self.longest = model.speech.heads, model.speech.frames * HOP
        self.tokens = WhisperTokens(self.tokenizer, model.speech, model.max_len)

    def check(self, request: AudioRequest, task: str) -> None:
        if request.language:
            self.tokens.language(request.language)
        if not self.tokens.languages:
            self.tokens.prompt("en", task, request.decodes_timestamps, [])
        read_rules(request)

    async def prepare(self, request: AudioRequest, sound: np.ndarray, task: str, ticket: Ticket) -> WindowedAudio:
        def hear() -> tuple[list[AudioWindow], list[LogMel]]:
            cuts = windows(sound, self.longest, RATE)
            return cuts, self.mels(sound, cuts)

        cuts, mels = await asyncio.to_thread(hear)
        language = self.tokens.language(request.language) if request.language else "" if self.tokens.languages else "en"
        language = language or await self._detect_language(request, mels[0], ticket)
        ids = self.tokens.prompt(language, task, request.decodes_timestamps, self.tokens.encode_before(request.prompt))
        return WindowedAudio(sound, cuts, [self.write_prompt(ids, mel) for mel in mels], language)

    def mels(self, sound: np.ndarray, cuts: Sequence[AudioWindow]) -> list[LogMel]:
        """For a thread."""
        return [LogMel(log_mel(sound[w.begin : w.end], self.config.bins, self.config.frames)) for w in cuts]

    def timed_fields(self) -> dict[str, Any]:
        """Sampling parameters of transcripts with times."""
        return {"extra_args": {"timestamps": [self.tokens.times, self.tokens.end, FIRST_WITHIN]}, "logprobs": 0}

    @staticmethod
    def write_prompt(ids: Sequence[int], mel: LogMel) -> dict[str, Any]:
        return {"prompt_token_ids": list(ids), "multi_modal_data": {"audio": mel}}

    def open_decoder(self, request: AudioRequest) -> WindowDecoder:
        """Of the windows of a request."""
        return WindowDecoder(self.serving, self.tokens, self.tokenizer, request)

    async def _detect_language(self, request: AudioRequest, mel: LogMel, ticket: Ticket) -> str:
        """The language that the first window most probably is in."""
        known = self.tokens.languages
        params = SamplingParams(
            temperature=0.0, max_tokens=1, allowed_token_ids=sorted(known.values()), detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )  # fmt: skip
        job = GenerationJob(
            id=f"lang-{id(mel):x}", model=self.serving.model_name(request.model), created=0,
            prompts=[self.write_prompt([self.tokens.start], mel)], params=params, priority=request.priority, ticket=ticket,
        )  # fmt: skip
        self.serving.check_priority(request.priority)
        (output,) = await self.serving.run(job)
        token = output.outputs[0].token_ids[0]
        return next(code for code, i in known.items() if i == token)
