"""/v1/audio/speech: a text in, speech out. The sentences of a text are prompts that run together. An answer has them in order,
as they are computed."""

from __future__ import annotations

import asyncio
import base64
import secrets
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import numpy as np
import orjson
from starlette.requests import Request
from starlette.responses import Response

from thalweg.media.audio_files import TYPES, has_rate, missing_package, open_encoder, to_int16, wav_header
from thalweg.media.speakers.base import Speaker, SpeechSettings
from thalweg.params import PoolingParams, RequestOutputKind, SamplingParams
from thalweg.server.audio.speech_protocol import SpeechRequest
from thalweg.server.core.adapters import explain_lost, find_lost
from thalweg.server.core.job import AcceptedJob, GenerationJob
from thalweg.server.core.pooled import PoolingJob, run_prompt
from thalweg.server.core.serving import Serving
from thalweg.server.core.turn import TurnReply
from thalweg.server.errors import ApiError
from thalweg.server.http.answer import DONE, OPENAI, EventStream, or_disconnect, respond

FIRST = 8
"""Frames of the first part of a sentence."""
SECONDS = 1.0
"""Of speech in an event, at most."""


async def speech(serving: Serving, http: Request) -> Response:
    request, ticket = await serving.read(http, lambda body: serving.fields.parse(SpeechRequest, body))
    serving.model_name(request.model)
    request.check()
    speaker = _speaker(serving)
    _check_format(request.response_format, speaker.rate)
    seed = secrets.randbits(63) if request.seed is None else request.seed
    settings = SpeechSettings(voice=request.voice_name, speed=request.speed, seed=seed, temperature=request.temperature)
    prompts = await asyncio.to_thread(speaker.prompts, request.input, settings)
    reply: SpeechReply
    if speaker.generates:
        params = SamplingParams(
            max_tokens=None, detokenize=False, output_kind=RequestOutputKind.DELTA, **speaker.sampling(settings)
        )
        result = serving.job("spch", http, request, prompts, params, ticket)
        reply = GeneratedReply(serving, result, speaker, request)
    else:
        job = serving.accept(PoolingJob, "spch", http, request, prompts, PoolingParams(), ticket)
        reply = PooledReply(serving, job, speaker, request)
    if request.stream_format == "sse":
        return EventStream(reply.events(), form=ERRORS)
    if request.response_format == "wav":  # its header has its length
        answer = await or_disconnect(http.receive, reply.wav())
        return Response(status_code=499) if answer is None else answer
    return EventStream(reply.file(), form=BROKEN, media_type=TYPES[request.response_format])


async def voices(serving: Serving, http: Request) -> Response:
    return respond({"voices": list(_speaker(serving).voices)})


def _check_format(form: str, rate: int) -> None:
    if package := missing_package(form):
        raise ApiError(
            f"response_format: {form} requires the package {package} (thalweg[speech]); install it, or use wav or pcm",
            "response_format",
        )
    if not has_rate(form, rate):
        raise ApiError(
            f"response_format: {form} has no rate of {rate} samples per second, as this model speaks; use wav, pcm or flac",
            "response_format",
        )


def _speaker(serving: Serving) -> Speaker:
    speaker = serving.engine.speaker
    assert speaker is not None, "models with this task have one"
    return speaker


def _break_off(error: ApiError) -> bytes:
    """A file cannot hold an error, so its end is left out: the connection closes before the last chunk."""
    raise ConnectionAbortedError(str(error))


ERRORS = replace(OPENAI, names={"prompt": "input", "prompt_token_ids": "input"})
BROKEN = replace(ERRORS, frame=_break_off)


class SpeechReply(ABC):
    """The sentences of one request as one file."""

    def __init__(self, serving: Serving, job: AcceptedJob, speaker: Speaker, request: SpeechRequest) -> None:
        self.serving, self.job, self.speaker, self.request = serving, job, speaker, request
        self._rows = 0

    @abstractmethod
    def samples(self) -> AsyncGenerator[np.ndarray, None]:
        """f32[n] of the next part of the speech, as they are computed."""

    async def wav(self) -> Response:
        """A WAV file."""
        parts = [np.zeros(0, np.float32), *[part async for part in self.samples()]]
        samples = np.concatenate(parts)
        return Response(wav_header(self.speaker.rate, len(samples)) + to_int16(samples).tobytes(), media_type=TYPES["wav"])

    async def file(self) -> AsyncGenerator[bytes, None]:
        """Its bytes, as sentences come."""
        encoder = open_encoder(self.request.response_format, self.speaker.rate)
        async with aclosing(self.samples()) as sentences:
            async for samples in sentences:
                yield await asyncio.to_thread(encoder.write, samples)
        yield await asyncio.to_thread(encoder.close)

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Frames of a stream of events."""
        encoder, most = open_encoder(self.request.response_format, self.speaker.rate), int(SECONDS * self.speaker.rate)
        async with aclosing(self.samples()) as sentences:
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


class PooledReply(SpeechReply):
    """Of a model whose prompts are utterances."""

    job: PoolingJob

    async def samples(self) -> AsyncGenerator[np.ndarray, None]:
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


class GeneratedReply(SpeechReply):
    """Of a model whose prompts generate frames. The codec's decoder is causal, so samples of known frames are final. A
    sentence is decoded from its first frame, each time that the number of frames has doubled."""

    job: GenerationJob

    async def samples(self) -> AsyncGenerator[np.ndarray, None]:
        """Sentences in order. Frames of later ones wait until the earlier ones end."""
        count = len(self.job.prompts)
        frames: list[list[np.ndarray]] = [[] for _ in range(count)]
        over, at, sent, given = [False] * count, 0, 0, 0
        async with aclosing(TurnReply(self.serving, self.job).outputs()) as outputs:
            async for i, output in outputs:
                frames[i] += self.speaker.frames(output.outputs[0])
                over[i] = output.finished
                while at < count:
                    known, size = frames[at], max(FIRST, 2 * sent)
                    if len(known) < size and not over[at]:
                        break
                    if len(part := known[:size]) > sent:
                        rows = await self._decode(part)
                        yield self.speaker.samples(rows[given:])
                        self._rows, sent, given = self._rows + len(part) - sent, len(part), len(rows)
                    if over[at] and sent == len(known):
                        frames[at], at, sent, given = [], at + 1, 0, 0

    async def _decode(self, frames: Sequence[np.ndarray]) -> np.ndarray:
        """f32[frames, hop]. It is a part of a running request, so it waits for no turn."""
        with self.serving.under_way(self.job.id) as request_id:
            prompt = self.speaker.decoding(frames)
            stream = self.serving.engine.encode(prompt, PoolingParams(), request_id, priority=self.job.priority)
            try:
                with explain_lost():
                    output = await anext(stream)
            finally:
                await stream.aclose()
        if output.error is not None:
            raise find_lost(output.error) or ApiError(output.error, status=500)
        rows: np.ndarray = output.outputs.data
        return rows


def _event(body: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(body) + b"\n\n"
