"""/v1/audio/speech: a text in, speech out. The sentences of a text are prompts that run together, and an answer has them in
order, each as soon as it is there."""

from __future__ import annotations

import asyncio
import base64
import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import numpy as np
import orjson
from starlette.requests import Request
from starlette.responses import Response

from thalweg.media.speakers.base import Speaker, SpeechSettings
from thalweg.params import PoolingParams
from thalweg.server.audio.speech_formats import TYPES, check_format, open_encoder, to_int16, wav_header
from thalweg.server.audio.speech_protocol import SpeechRequest
from thalweg.server.core.pooled import PoolingJob, run_prompt
from thalweg.server.core.serving import Serving
from thalweg.server.errors import ApiError, ErrorForm
from thalweg.server.http.answer import DONE, OPENAI, EventStream, or_disconnect, respond

SECONDS = 1.0
"""Of speech in an event, at most."""


async def speech(serving: Serving, http: Request) -> Response:
    request, ticket = await serving.read(http, lambda body: serving.fields.parse(SpeechRequest, body))
    serving.model_name(request.model)
    request.check()
    check_format(request.response_format)
    speaker = _speaker(serving)
    seed = secrets.randbits(63) if request.seed is None else request.seed
    settings = SpeechSettings(voice=request.voice_name, speed=request.speed, seed=seed)
    prompts = await asyncio.to_thread(speaker.prompts, request.input, settings)
    job = serving.accept(PoolingJob, "spch", http, request, prompts, PoolingParams(), ticket)
    reply = SpeechReply(serving, job, speaker, request)
    if request.stream_format == "sse":
        return EventStream(reply.events())
    if request.response_format == "wav":  # its header has its length
        answer = await or_disconnect(http.receive, reply.wav())
        return Response(status_code=499) if answer is None else answer
    return EventStream(reply.file(), form=BROKEN, media_type=TYPES[request.response_format])


async def voices(serving: Serving, http: Request) -> Response:
    return respond({"voices": list(_speaker(serving).voices)})


def _speaker(serving: Serving) -> Speaker:
    speaker = serving.engine.speaker
    assert speaker is not None, "models with this task have one"
    return speaker


def _break_off(error: ApiError) -> bytes:
    """A file cannot hold an error, so its end is left out: the connection closes before the last chunk."""
    raise ConnectionAbortedError(str(error))


BROKEN = ErrorForm(OPENAI.body, _break_off)


class SpeechReply:
    """The sentences of one request as one file."""

    def __init__(self, serving: Serving, job: PoolingJob, speaker: Speaker, request: SpeechRequest) -> None:
        self.serving, self.job, self.speaker, self.request = serving, job, speaker, request
        self._rows = 0

    async def wav(self) -> Response:
        """A WAV file."""
        parts = [part async for part in self._samples()]
        samples = np.concatenate(parts)
        return Response(wav_header(self.speaker.rate, len(samples)) + to_int16(samples).tobytes(), media_type=TYPES["wav"])

    async def file(self) -> AsyncGenerator[bytes, None]:
        """Its bytes, as sentences come."""
        encoder = open_encoder(self.request.response_format, self.speaker.rate)
        async with aclosing(self._samples()) as sentences:
            async for samples in sentences:
                yield await asyncio.to_thread(encoder.write, samples)
        yield await asyncio.to_thread(encoder.close)

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Frames of a stream of events."""
        encoder, most = open_encoder(self.request.response_format, self.speaker.rate), int(SECONDS * self.speaker.rate)
        async with aclosing(self._samples()) as sentences:
            async for samples in sentences:
                for at in range(0, len(samples), most):
                    if data := await asyncio.to_thread(encoder.write, samples[at : at + most]):
                        yield _event({"type": "speech.audio.delta", "audio": base64.b64encode(data).decode()})
        if data := await asyncio.to_thread(encoder.close):
            yield _event({"type": "speech.audio.delta", "audio": base64.b64encode(data).decode()})
        read = sum(len(prompt["prompt_token_ids"]) for prompt in self.job.prompts)
        usage = {"input_tokens": read, "output_tokens": self._rows, "total_tokens": read + self._rows}
        yield _event({"type": "speech.audio.done", "usage": usage})
        yield DONE

    async def _samples(self) -> AsyncGenerator[np.ndarray, None]:
        """Of each sentence, in order. The first failure cancels the rest."""
        tasks: Sequence[asyncio.Task[Any]] = [
            asyncio.create_task(run_prompt(self.serving, self.job, i)) for i in range(len(self.job.prompts))
        ]
        try:
            for task in tasks:
                rows = (await task).outputs.data
                self._rows += len(rows)
                yield self.speaker.samples(rows)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def _event(body: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(body) + b"\n\n"
