"""/v1/audio/transcriptions and /v1/audio/translations: a sound in windows, each of which the model hears by itself, all of them
at once."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from starlette.requests import Request
from starlette.responses import Response

from thalweg.config import SoundConfig
from thalweg.host import envs
from thalweg.media.mel import HOP, RATE, LogMel, log_mel
from thalweg.media.quiet import Window, windows
from thalweg.media.sound import SoundGate
from thalweg.outputs import RequestOutput
from thalweg.params import RequestOutputKind, SamplingParams
from thalweg.server.audio import pieces
from thalweg.server.audio.protocol import AudioRequest, check, fields_of
from thalweg.server.audio.tokens import FIRST_WITHIN, Tokens
from thalweg.server.core.admission import Ticket
from thalweg.server.core.serving import Job, Serving
from thalweg.server.errors import ApiError
from thalweg.server.http.answer import DONE, STARTED, EventStream, or_disconnect, respond

OVERHEAD = 256 * 1024
"""Bytes of a form beside its file."""
DECODERS = 2
GIVEN = ("top_p", "top_k", "min_p", "seed", "frequency_penalty", "presence_penalty", "repetition_penalty")


class Ear:
    """What the audio routes of a server share."""

    def __init__(self, serving: Serving) -> None:
        model = serving.engine.config.model
        assert model.sound is not None
        self.config: SoundConfig = model.sound
        self.tokenizer = serving.tokenizer("file")
        self.tokens = Tokens(self.tokenizer, model.sound, model.max_len)
        self.most_bytes = int(envs.audio_file_megabytes() * 2**20)
        self.gate = SoundGate(DECODERS, envs.audio_seconds())

    def hear(self, data: bytes) -> Heard:
        """For a thread. RequestError."""
        sound = self.gate.decode(data)
        if not sound.size:
            raise ApiError("file: it has no samples", "file")
        cuts = windows(sound, self.config.frames * HOP, RATE)
        return Heard(sound.size / RATE, cuts, [self._mel(sound[w.begin : w.end]) for w in cuts])

    def _mel(self, sound: np.ndarray) -> LogMel:
        return LogMel(log_mel(sound, self.config.bins, self.config.frames))


@dataclass(slots=True)
class Heard:
    seconds: float
    cuts: list[Window]
    mels: list[LogMel]


async def transcriptions(serving: Serving, http: Request) -> Response:
    return await _answer(serving, http, "transcribe")


async def translations(serving: Serving, http: Request) -> Response:
    return await _answer(serving, http, "translate")


async def _answer(serving: Serving, http: Request, task: str) -> Response:
    ear = serving.own(Ear)
    parts, ticket = await serving.read_form(http, ear.most_bytes + OVERHEAD)
    fields, data = fields_of(parts)
    del parts
    request = serving.fields.parse(AudioRequest, fields)
    check(request)
    serving.model_name(request.model)
    if len(data) > ear.most_bytes:
        raise ApiError(f"file: {len(data)} bytes; at most {ear.most_bytes} are taken: send it in parts", "file", 413)
    language = ear.tokens.language(request.language) if request.language else ""
    if not ear.tokens.languages:
        language = "en"
        ear.tokens.prompt(language, task, request.timed, "")  # refused before it is heard
    heard = await asyncio.to_thread(ear.hear, data)
    del data
    work = or_disconnect(http.receive, _detected(serving, request, ear, heard, ticket)) if not language else None
    if work is not None:
        found = await work
        if found is None:
            return Response(status_code=499)
        language = found
    prompt = ear.tokens.prompt(language, task, request.timed, request.prompt)
    prompts = [_prompt(prompt, mel) for mel in heard.mels]
    job = serving.job(
        "trsc" if task == "transcribe" else "trsl", http, request, prompts, _params(request, ear, len(prompt)), ticket
    )
    made = Transcript(serving, ear, request, job, heard, language, task)
    if request.stream:
        return EventStream(made.stream())
    answer = await or_disconnect(http.receive, made.whole())
    return Response(status_code=499) if answer is None else answer


def _prompt(ids: list[int], mel: LogMel) -> dict[str, Any]:
    return {"prompt_token_ids": list(ids), "multi_modal_data": {"audio": mel}}


def _params(request: AudioRequest, ear: Ear, prompt: int) -> SamplingParams:
    fields = {name: value for name in GIVEN if (value := getattr(request, name)) is not None}
    if request.timed:
        fields |= {"extra_args": {"timestamps": [ear.tokens.times, ear.tokens.end, FIRST_WITHIN]}, "logprobs": 0}
    kind = RequestOutputKind.DELTA if request.stream else RequestOutputKind.FINAL_ONLY
    return SamplingParams(
        temperature=request.temperature or 0.0, max_tokens=request.max_completion_tokens, output_kind=kind,
        detokenize=not request.timed, **fields,
    )  # fmt: skip


async def _detected(serving: Serving, request: AudioRequest, ear: Ear, heard: Heard, ticket: Ticket) -> str:
    """The language that the first window most probably is in."""
    known = ear.tokens.languages
    params = SamplingParams(
        temperature=0.0, max_tokens=1, allowed_token_ids=sorted(known.values()), detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )  # fmt: skip
    job = Job(
        id=f"lang-{id(heard):x}", model=serving.model_name(request.model), created=0,
        prompts=[_prompt([ear.tokens.start], heard.mels[0])], params=params, priority=request.priority, ticket=ticket,
    )  # fmt: skip
    serving.check_priority(request.priority)
    (output,) = await serving.run(job)
    token = output.outputs[0].token_ids[0]
    return next(code for code, i in known.items() if i == token)


@dataclass(slots=True)
class Transcript:
    """One request: its windows as one answer, or as a stream."""

    serving: Serving
    ear: Ear
    request: AudioRequest
    job: Job
    heard: Heard
    language: str
    task: str

    async def whole(self) -> Response:
        outputs = await self.serving.run(self.job)
        form = self.request.response_format
        if self.request.timed:
            found = [p for i, output in enumerate(outputs) for p in self._pieces(i, output)]
            if form == "srt":
                return Response(pieces.srt(found), media_type="text/plain")
            if form == "vtt":
                return Response(pieces.vtt(found), media_type="text/plain")
            return respond({
                "task": self.task, "language": self.language, "duration": round(self.heard.seconds, 3),
                "text": "".join(p.text for p in found).strip(), "words": None,
                "segments": pieces.verbose(found, self.job.params.temperature), "usage": self._usage(),
            })  # fmt: skip
        text = "".join(o.outputs[0].text for o in outputs).strip()
        if form == "text":
            return Response(text + "\n", media_type="text/plain")
        return respond({"text": text, "usage": self._usage()})

    def _pieces(self, i: int, output: RequestOutput) -> list[pieces.Piece]:
        choice, window = output.outputs[0], self.heard.cuts[i]
        ids = [t for t in choice.token_ids if t != self.ear.tokens.end]
        known = [
            position[t].logprob for t, position in zip(choice.token_ids, choice.logprobs or (), strict=False) if t in position
        ]
        mean = sum(known) / len(known) if known else 0.0
        length = (window.end - window.begin) / RATE
        return list(pieces.cut(ids, self.ear.tokens, self.ear.tokenizer, window.begin / RATE, length, mean))

    def _usage(self) -> dict[str, Any]:
        return {"type": "duration", "seconds": math.ceil(self.heard.seconds)}

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Windows in order: what a later one says waits until the earlier ones have ended."""
        count, at, text = len(self.job.prompts), 0, ""
        held: list[str] = [""] * count
        ended = [False] * count
        outputs = self.serving.stream(self.job)
        try:
            async for i, output in outputs:
                yield STARTED
                held[i] += output.outputs[0].text
                ended[i] = output.finished
                while at < count:
                    delta, held[at] = held[at], ""
                    delta = delta if text else delta.lstrip()
                    text += delta
                    if delta:
                        yield _event({"type": "transcript.text.delta", "delta": delta})
                    if not ended[at]:
                        break
                    at += 1
        finally:
            await outputs.aclose()
        yield _event({"type": "transcript.text.done", "text": text.rstrip(), "usage": self._usage()})
        yield DONE


def _event(body: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(body) + b"\n\n"
