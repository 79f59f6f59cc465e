"""Transcripts of models whose encoder gives them with the times of their tokens: CTC models and transducers. Each window of the
audio is a prompt, and its result is the whole transcript of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
from starlette.requests import Request
from starlette.responses import Response

from thalweg.media.audio_processors.clips import ClipAudio
from thalweg.media.audio_windows import AudioWindow, windows
from thalweg.media.kinds.base import MediaSource
from thalweg.media.mel import RATE
from thalweg.params import PoolingParams
from thalweg.server.audio import pieces
from thalweg.server.audio.protocol import AudioRequest
from thalweg.server.audio.recognizer import Recognizer, WindowedAudio, join_words
from thalweg.server.audio.spelling import cut_segments, read_rows, spell_words
from thalweg.server.core.pooled import Output, PoolingJob, run_prompt
from thalweg.server.core.sampling import shared_fields
from thalweg.server.errors import ApiError
from thalweg.server.http.answer import DONE, STARTED, EventStream, or_disconnect, respond
from thalweg.server.http.middleware import current_scope, tenant_of

if TYPE_CHECKING:
    from thalweg.server.core.admission import Ticket
    from thalweg.server.core.serving import Serving

KIND = "audio"
PARAMS = PoolingParams()


class ClipRecognizer(Recognizer):
    timed, heads = True, 1

    def __init__(self, serving: Serving) -> None:
        super().__init__(serving)
        self._media = serving.engine.media
        processor = None if self._media is None else self._media.processors.get(KIND)
        assert isinstance(processor, ClipAudio), "such models have no other"
        self._second, self.longest = RATE / processor.stride, int(processor.most * RATE)
        self._shortest = processor.shortest

    def check(self, request: AudioRequest, task: str) -> None:
        if task == "translate":
            raise ApiError("model: translation is not supported by this model; use /v1/audio/transcriptions", "model")
        if request.language:
            raise ApiError("language: this model reads no language; omit it", "language")
        if request.prompt.strip():
            raise ApiError("prompt: this model reads no text before a transcript; omit it", "prompt")
        for name in (*shared_fields(AudioRequest), "max_completion_tokens"):
            value = getattr(request, name)
            if value not in (None, AudioRequest.model_fields[name].default) and (name, value) != ("temperature", 0):
                raise ApiError(f"{name}: this model does not sample: its transcripts are greedy; omit it", name)

    async def prepare(self, request: AudioRequest, sound: np.ndarray, task: str, ticket: Ticket) -> WindowedAudio:
        """Clips too short for the encoder end in silence."""
        assert self._media is not None
        cuts = windows(sound, self.longest, RATE)
        parts = [sound[w.begin : w.end] for w in cuts]
        sources = [MediaSource(KIND, "file", samples=np.pad(each, (0, max(0, self._shortest - each.size)))) for each in parts]
        items = await self._media.read_async(sources, tenant_of(current_scope.get()))
        return WindowedAudio(sound, cuts, [self._media.whole_prompt(item) for item in items])

    def join(self, before: str, after: str) -> str:
        return join_words(before, after)

    def spell(self, ids: Sequence[int]) -> str:
        """The text of token ids. A blank is no text."""
        return self.tokenizer.decode(list(ids), True)

    def read_window(self, output: Output) -> str:
        """The text of a window. For a thread."""
        return self.spell([int(i) for i in read_rows(output.outputs.data)[:, 0]]).strip()

    def read_segments(self, output: Output, window: AudioWindow) -> list[pieces.TranscriptSegment]:
        """The same with times. For a thread."""
        offset = window.begin / RATE
        words = spell_words(read_rows(output.outputs.data), self.spell, offset, self._second)
        return list(cut_segments(words, offset))


class ClipReply:
    """The windows of one request as one answer, or as a stream."""

    def __init__(
        self, serving: Serving, job: PoolingJob, recognizer: ClipRecognizer, request: AudioRequest, audio: WindowedAudio,
        text: str = "",
    ) -> None:  # fmt: skip
        """text: of the windows before."""
        self.serving, self.job, self.recognizer, self.request, self.audio = serving, job, recognizer, request, audio
        self.text = text

    async def transcript(self) -> Response:
        """The whole answer, in the requested format."""
        form, found = self.request.response_format, list[pieces.TranscriptSegment]()
        async with aclosing(self._outputs()) as outputs:
            async for i, output in outputs:
                if self.request.has_timestamps:
                    found += await asyncio.to_thread(self.recognizer.read_segments, output, self.audio.cuts[i])
                else:
                    await self._add(output)
        if self.request.has_timestamps:
            return pieces.write_timed(found, self.request, self.audio, "transcribe")
        if form == "text":
            return Response(self.text + "\n", media_type="text/plain")
        return respond({"text": self.text, "usage": pieces.write_usage(self.audio)})

    async def deltas(self) -> AsyncGenerator[str, None]:
        """The text of each window, in order, with the text between windows in front."""
        async with aclosing(self._outputs()) as outputs:
            async for _, output in outputs:
                if delta := await self._add(output):
                    yield delta

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Frames of a stream."""
        yield STARTED
        async with aclosing(self.deltas()) as deltas:
            async for delta in deltas:
                yield _event({"type": "transcript.text.delta", "delta": delta})
        yield _event({"type": "transcript.text.done", "text": self.text, "usage": pieces.write_usage(self.audio)})
        yield DONE

    async def _outputs(self) -> AsyncGenerator[tuple[int, Output], None]:
        """Outputs in the order of the windows, which run together. The first failure cancels the rest."""
        tasks = [asyncio.create_task(run_prompt(self.serving, self.job, i)) for i in range(len(self.job.prompts))]
        try:
            for i, task in enumerate(tasks):
                yield i, await task
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _add(self, output: Output) -> str:
        """The delta of a window."""
        text = await asyncio.to_thread(self.recognizer.read_window, output)
        delta = self.recognizer.join(self.text, text) + text
        self.text += delta
        return delta


async def answer_clip(serving: Serving, http: Request, recognizer: ClipRecognizer, request: AudioRequest, audio: WindowedAudio,
                      ticket: Ticket) -> Response:  # fmt: skip
    serving.engine.check_pooling(PARAMS)
    job = serving.accept(PoolingJob, "trsc", http, request, audio.prompts, PARAMS, ticket)
    reply = ClipReply(serving, job, recognizer, request, audio)
    if request.stream:
        return EventStream(reply.events())
    answer = await or_disconnect(http.receive, reply.transcript())
    return Response(status_code=499) if answer is None else answer


def _event(body: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(body) + b"\n\n"
