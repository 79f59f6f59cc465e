"""/v1/audio/transcriptions and /v1/audio/translations. Audio is split into windows. The model transcribes all windows at once
and independently."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from thalweg.media.audio_processors.transcribers import TRANSCRIBERS
from thalweg.outputs import RequestOutput
from thalweg.params import RequestOutputKind, SamplingParams
from thalweg.server.audio import pieces
from thalweg.server.audio.chat import ChatRecognizer
from thalweg.server.audio.clips import ClipRecognizer, answer_clip
from thalweg.server.audio.plain import PlainRecognizer
from thalweg.server.audio.prompted import PromptedRecognizer
from thalweg.server.audio.protocol import AudioRequest, check, fields_of
from thalweg.server.audio.recognizer import Recognizer, WindowedAudio
from thalweg.server.audio.timed import TimedTranscript
from thalweg.server.audio.timed_stream import StreamRecognizer
from thalweg.server.audio.whisper import WhisperRecognizer
from thalweg.server.core.job import GenerationJob
from thalweg.server.core.sampling import shared_fields
from thalweg.server.core.serving import Serving
from thalweg.server.core.turn import TurnReply
from thalweg.server.errors import ApiError
from thalweg.server.http.answer import DONE, or_disconnect, respond

OVERHEAD = 256 * 1024
"""Bytes of a form besides its file."""


async def transcriptions(serving: Serving, http: Request) -> Response:
    return await _answer(serving, http, "transcribe")


async def translations(serving: Serving, http: Request) -> Response:
    return await _answer(serving, http, "translate")


def open_recognizer(serving: Serving) -> Recognizer:
    """For `Serving.own`."""
    model = serving.engine.config.model
    if model.pooling is not None:
        return ClipRecognizer(serving)
    if model.speech is None:
        return ChatRecognizer(serving) if model.architecture in TRANSCRIBERS else StreamRecognizer(serving)
    if model.speech.start:
        return PlainRecognizer(serving)
    return WhisperRecognizer(serving) if model.speech.form == "whisper" else PromptedRecognizer(serving)


async def _answer(serving: Serving, http: Request, task: str) -> Response:
    recognizer = serving.own(open_recognizer)
    parts, ticket = await serving.read_form(http, recognizer.most_bytes + OVERHEAD)
    fields, data = fields_of(parts)
    del parts
    request = serving.fields.parse(AudioRequest, fields)
    check(request, recognizer.timed, recognizer.heads, recognizer.falls_back)
    serving.model_name(request.model)
    if len(data) > recognizer.most_bytes:
        raise ApiError(f"file: {len(data)} bytes; at most {recognizer.most_bytes} are taken: send it in parts", "file", 413)
    recognizer.check(request, task)
    sound = await asyncio.to_thread(recognizer.decode, data)
    del data
    audio = await or_disconnect(http.receive, recognizer.prepare(request, sound, task, ticket))
    if audio is None:
        return Response(status_code=499)
    if isinstance(recognizer, ClipRecognizer):
        return await answer_clip(serving, http, recognizer, request, audio, ticket)
    params = build_params(recognizer, request, audio)
    job = serving.job("trsc" if task == "transcribe" else "trsl", http, request, audio.prompts, params, ticket)
    reply = TranscriptReply(serving, job, recognizer, request, audio, task)
    if request.stream:
        return await reply.respond(http, True)
    answer = await or_disconnect(http.receive, reply.transcript())
    return Response(status_code=499) if answer is None else answer


def build_params(recognizer: Recognizer, request: AudioRequest, audio: WindowedAudio | None) -> SamplingParams:
    """Of every window. audio: None, where it is not complete."""
    fields = {name: value for name in shared_fields(AudioRequest) if (value := getattr(request, name)) is not None}
    if request.decodes_timestamps and isinstance(recognizer, WhisperRecognizer):
        fields |= recognizer.timed_fields()
    if not recognizer.ended:
        fields["ignore_eos"] = True
    kind = RequestOutputKind.DELTA if request.stream else RequestOutputKind.FINAL_ONLY
    return SamplingParams(
        max_tokens=request.max_completion_tokens or (None if audio is None else recognizer.limit(audio)), output_kind=kind,
        detokenize=not request.decodes_timestamps, **{"temperature": 0.0, **fields},
    )  # fmt: skip


class TranscriptReply(TurnReply):
    """The windows of one request as one answer, or as a stream."""

    def __init__(
        self,
        serving: Serving,
        job: GenerationJob,
        recognizer: Recognizer,
        request: AudioRequest,
        audio: WindowedAudio,
        task: str,
    ) -> None:
        super().__init__(serving, job)
        self.recognizer, self.request, self.audio, self.task = recognizer, request, audio, task
        self._text = ""
        self._filters = [recognizer.open_filter(request) for _ in job.prompts]
        self._held = [""] * len(job.prompts)
        """Text of windows held back until earlier ones end."""
        self._over = [False] * len(job.prompts)
        self._at, self._begun = 0, False
        """The window being written, and whether some of its text is."""

    async def transcript(self) -> Response:
        """The whole answer, in the requested format."""
        form, text = self.request.response_format, ""
        if self.request.decodes_timestamps:
            assert isinstance(self.recognizer, WhisperRecognizer)
            found = await TimedTranscript(self.recognizer, self.job, self.request, self.audio, self.task).transcribe()
            if self.request.has_timestamps:
                return pieces.write_timed(found, self.request, self.audio, self.task)
            texts = [piece.text for piece in found]
        elif isinstance(self.recognizer, WhisperRecognizer):
            decoded = await self.recognizer.open_decoder(self.request).decode(self.job)
            texts = ["" if each.is_silent else each.text for each in decoded]
        else:
            outputs = await self.serving.run(self.job)
            texts = [f.push(o.outputs[0].text) + f.finish() for f, o in zip(self._filters, outputs, strict=True)]
        for each in texts:
            text += self.recognizer.join(text, each) + each
        text = text.strip()
        if form == "text":
            return Response(text + "\n", media_type="text/plain")
        return respond({"text": text, "usage": self._usage()})

    def _usage(self) -> dict[str, Any]:
        return pieces.write_usage(self.audio)

    def write(self, i: int, output: RequestOutput) -> Iterator[bytes]:
        """Windows in order: text of a later one waits until the earlier ones end."""
        self._held[i] += self._filters[i].push(output.outputs[0].text)
        self._over[i] = output.finished
        if output.finished:
            self._held[i] += self._filters[i].finish()
        while self._at < len(self._held):
            delta, self._held[self._at] = self._held[self._at], ""
            delta = delta if self._text else delta.lstrip()
            if delta:
                delta = delta if self._begun else self.recognizer.join(self._text, delta) + delta
                self._text, self._begun = self._text + delta, True
                yield _event({"type": "transcript.text.delta", "delta": delta})
            if not self._over[self._at]:
                break
            self._at, self._begun = self._at + 1, False

    def end(self) -> Iterator[bytes]:
        yield _event({"type": "transcript.text.done", "text": self._text.rstrip(), "usage": self._usage()})
        yield DONE


def _event(body: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(body) + b"\n\n"
