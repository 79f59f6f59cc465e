"""/v1/audio/transcriptions and /v1/audio/translations. Audio is split into windows. The model transcribes all windows at once
and independently."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import orjson
from starlette.requests import Request
from starlette.responses import Response

from thalweg.config import SpeechConfig
from thalweg.host import envs
from thalweg.media.audio_decoder import AudioDecoder
from thalweg.media.audio_windows import AudioWindow, windows
from thalweg.media.mel import HOP, RATE, LogMel, log_mel
from thalweg.outputs import RequestOutput
from thalweg.params import RequestOutputKind, SamplingParams
from thalweg.server.audio import pieces
from thalweg.server.audio.alignment import align_tokens
from thalweg.server.audio.protocol import AudioRequest, check, fields_of
from thalweg.server.audio.tokens import FIRST_WITHIN, STEP, WhisperTokens
from thalweg.server.core.admission import Ticket
from thalweg.server.core.job import GenerationJob
from thalweg.server.core.sampling import shared_fields
from thalweg.server.core.serving import Serving
from thalweg.server.core.turn import TurnReply
from thalweg.server.errors import ApiError
from thalweg.server.http.answer import DONE, or_disconnect, respond

OVERHEAD = 256 * 1024
"""Bytes of a form besides its file."""
DECODERS = 2
ROUNDS = 30
"""Most repetitions for the rest of a window."""
ALIGNED = 2
"""Windows whose words get their times at once."""
STRIDE = 2
"""Frames of the spectrum for each that the model attends to."""
LEAST = 0.2
"""Least seconds of a rest to transcribe."""


class AudioServing:
    """State shared by the audio routes of a server."""

    def __init__(self, serving: Serving) -> None:
        model = serving.engine.config.model
        assert model.speech is not None
        self.config: SpeechConfig = model.speech
        self.tokenizer = serving.tokenizer("file")
        self.tokens = WhisperTokens(self.tokenizer, model.speech, model.max_len)
        self.most_bytes = envs.upload_bytes()
        self.gate = AudioDecoder(DECODERS, envs.audio_seconds())

    def hear(self, data: bytes) -> WindowedAudio:
        """For a thread. RequestError."""
        sound = self.gate.decode(data)
        if not sound.size:
            raise ApiError("file: it has no samples", "file")
        cuts = windows(sound, self.config.frames * HOP, RATE)
        return WindowedAudio(sound, cuts, self.mels(sound, cuts))

    def mels(self, sound: np.ndarray, cuts: Sequence[AudioWindow]) -> list[LogMel]:
        return [LogMel(log_mel(sound[w.begin : w.end], self.config.bins, self.config.frames)) for w in cuts]


@dataclass(slots=True)
class WindowedAudio:
    sound: np.ndarray
    cuts: list[AudioWindow]
    mels: list[LogMel]

    @property
    def seconds(self) -> float:
        return self.sound.size / RATE


async def transcriptions(serving: Serving, http: Request) -> Response:
    return await _answer(serving, http, "transcribe")


async def translations(serving: Serving, http: Request) -> Response:
    return await _answer(serving, http, "translate")


async def _answer(serving: Serving, http: Request, task: str) -> Response:
    ear = serving.own(AudioServing)
    parts, ticket = await serving.read_form(http, ear.most_bytes + OVERHEAD)
    fields, data = fields_of(parts)
    del parts
    request = serving.fields.parse(AudioRequest, fields)
    check(request, ear.config.heads)
    serving.model_name(request.model)
    if len(data) > ear.most_bytes:
        raise ApiError(f"file: {len(data)} bytes; at most {ear.most_bytes} are taken: send it in parts", "file", 413)
    language = ear.tokens.language(request.language) if request.language else ""
    if not ear.tokens.languages:
        language = "en"
        ear.tokens.prompt(language, task, request.has_timestamps, "")  # rejected before it is decoded
    heard = await asyncio.to_thread(ear.hear, data)
    del data
    work = or_disconnect(http.receive, _detect_language(serving, request, ear, heard, ticket)) if not language else None
    if work is not None:
        found = await work
        if found is None:
            return Response(status_code=499)
        language = found
    prompt = ear.tokens.prompt(language, task, request.has_timestamps, request.prompt)
    prompts = [_prompt(prompt, mel) for mel in heard.mels]
    job = serving.job(
        "trsc" if task == "transcribe" else "trsl", http, request, prompts, _params(request, ear, len(prompt)), ticket
    )
    reply = TranscriptReply(serving, job, ear, request, heard, language, task)
    if request.stream:
        return await reply.respond(http, True)
    answer = await or_disconnect(http.receive, reply.transcript())
    return Response(status_code=499) if answer is None else answer


def _prompt(ids: list[int], mel: LogMel) -> dict[str, Any]:
    return {"prompt_token_ids": list(ids), "multi_modal_data": {"audio": mel}}


def _params(request: AudioRequest, ear: AudioServing, prompt: int) -> SamplingParams:
    fields = {name: value for name in shared_fields(AudioRequest) if (value := getattr(request, name)) is not None}
    if request.has_timestamps:
        fields |= {"extra_args": {"timestamps": [ear.tokens.times, ear.tokens.end, FIRST_WITHIN]}, "logprobs": 0}
    kind = RequestOutputKind.DELTA if request.stream else RequestOutputKind.FINAL_ONLY
    return SamplingParams(
        max_tokens=request.max_completion_tokens, output_kind=kind, detokenize=not request.has_timestamps,
        **{"temperature": 0.0, **fields},
    )  # fmt: skip


async def _detect_language(
    serving: Serving, request: AudioRequest, ear: AudioServing, heard: WindowedAudio, ticket: Ticket
) -> str:
    """The language that the first window most probably is in."""
    known = ear.tokens.languages
    params = SamplingParams(
        temperature=0.0, max_tokens=1, allowed_token_ids=sorted(known.values()), detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )  # fmt: skip
    job = GenerationJob(
        id=f"lang-{id(heard):x}", model=serving.model_name(request.model), created=0,
        prompts=[_prompt([ear.tokens.start], heard.mels[0])], params=params, priority=request.priority, ticket=ticket,
    )  # fmt: skip
    serving.check_priority(request.priority)
    (output,) = await serving.run(job)
    token = output.outputs[0].token_ids[0]
    return next(code for code, i in known.items() if i == token)


class TranscriptReply(TurnReply):
    """The windows of one request as one answer, or as a stream."""

    def __init__(
        self,
        serving: Serving,
        job: GenerationJob,
        ear: AudioServing,
        request: AudioRequest,
        heard: WindowedAudio,
        language: str,
        task: str,
    ) -> None:
        super().__init__(serving, job)
        self.ear, self.request, self.heard, self.language, self.task = ear, request, heard, language, task
        self._text = ""
        self._held = [""] * len(job.prompts)
        """Text of windows held back until earlier ones end."""
        self._over = [False] * len(job.prompts)
        self._at = 0
        """The window being written."""

    async def transcript(self) -> Response:
        """The whole answer, in the form that was asked for."""
        form = self.request.response_format
        if self.request.has_timestamps:
            quiet = await self._no_speech() if form == "verbose_json" else None
            found, asked = await self._transcribe_windows(quiet), self.request.granularities
            if form == "srt":
                return Response(pieces.srt(found), media_type="text/plain")
            if form == "vtt":
                return Response(pieces.vtt(found), media_type="text/plain")
            return respond({
                "task": self.task, "language": self.language, "duration": round(self.heard.seconds, 3),
                "text": "".join(p.text for p in found).strip(),
                "words": pieces.list_words(found) if "word" in asked else None,
                "segments": None if asked == {"word"} else pieces.verbose(found, self.job.params.temperature),
                "usage": self._usage(),
            })  # fmt: skip
        text = "".join(o.outputs[0].text for o in await self.serving.run(self.job)).strip()
        if form == "text":
            return Response(text + "\n", media_type="text/plain")
        return respond({"text": text, "usage": self._usage()})

    async def _no_speech(self) -> list[float] | None:
        """The probability of each window that nobody speaks in it: that of a token right after the first. None: the model has
        no such token."""
        token, start = self.ear.tokens.no_speech, self.ear.tokens.start
        if token is None:
            return None
        params = SamplingParams(
            temperature=0.0, max_tokens=1, prompt_logprobs=0, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY
        )
        prompts = [_prompt([start, token], mel) for mel in self.heard.mels]
        outputs = await self.serving.run(msgspec.structs.replace(self.job, prompts=prompts, params=params))
        found: list[float] = []
        for output in outputs:
            known = None if output.prompt_logprobs is None else output.prompt_logprobs[1]
            assert known is not None
            found.append(math.exp(known[token].logprob))
        return found

    async def _transcribe_windows(self, quiet: list[float] | None) -> list[pieces.TranscriptSegment]:
        """Segments of all windows, in order. A rest that a window did not transcribe is sent again, as a separate window.
        quiet: of each window, the probability that nobody speaks."""
        found: list[list[pieces.TranscriptSegment]] = [[] for _ in self.heard.cuts]
        todo, job = list(enumerate(self.heard.cuts)), self.job
        for _ in range(ROUNDS):
            outputs = await self.serving.run(job)
            times = await self._align_words(job, [window for _, window in todo], outputs)
            for (i, window), output, known in zip(todo, outputs, times, strict=True):
                found[i] += self._pieces(window, output, known)
            rests = ((i, self._rest(window, o)) for (i, window), o in zip(todo, outputs, strict=True))
            todo = [(i, rest) for i, rest in rests if rest is not None]
            if not todo:
                break
            mels = await asyncio.to_thread(self.ear.mels, self.heard.sound, [w for _, w in todo])
            prompt = self.job.prompts[0]["prompt_token_ids"]
            job = msgspec.structs.replace(self.job, prompts=[_prompt(prompt, mel) for mel in mels])
        for segments, probability in zip(found, quiet or (), strict=False):
            for segment in segments:
                segment.no_speech = probability
        return [piece for window in found for piece in window]

    def _rest(self, window: AudioWindow, output: RequestOutput) -> AudioWindow | None:
        """The rest of a window to transcribe again: all after the last timestamp, if it is repeated. The model is trained to
        repeat it where a segment begins that the window cuts off."""
        ids, times = [t for t in output.outputs[0].token_ids if t != self.ear.tokens.end], self.ear.tokens.times
        if len(ids) < 3 or min(ids[-2:]) < times:
            return None
        begin = window.begin + round((ids[-1] - times) * STEP * RATE)
        return AudioWindow(begin, window.end) if window.begin < begin < window.end - LEAST * RATE else None

    async def _align_words(
        self, job: GenerationJob, cuts: Sequence[AudioWindow], outputs: Sequence[RequestOutput]
    ) -> list[pieces.TokenTimes | None]:
        """Times of each window's tokens, where words have times: the model reads the transcript again, some windows at once,
        because the weights of each are megabytes."""
        found: list[pieces.TokenTimes | None] = [None] * len(cuts)
        if "word" not in self.request.granularities:
            return found
        before = len(job.prompts[0]["prompt_token_ids"])
        params = SamplingParams(
            temperature=0.0, max_tokens=1, extra_args={"alignment": before}, detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )  # fmt: skip
        drawn = [output.outputs[0].token_ids for output in outputs]
        long = [i for i, ids in enumerate(drawn) if len(ids) > 1]
        for at in range(0, len(long), ALIGNED):
            group = long[at : at + ALIGNED]
            prompts = [
                {**job.prompts[i], "prompt_token_ids": [*job.prompts[i]["prompt_token_ids"], *drawn[i][:-1]]} for i in group
            ]
            aligned = await self.serving.run(msgspec.structs.replace(job, prompts=prompts, params=params))
            for i, output in zip(group, aligned, strict=True):
                found[i] = await asyncio.to_thread(self._read_times, output, cuts[i])
        return [pieces.TokenTimes([0.0], self.language) if times is None else times for times in found]

    def _read_times(self, output: RequestOutput, window: AudioWindow) -> pieces.TokenTimes:
        """For a thread. The last token of a window has no weights: it ends with the one before."""
        assert output.alignment is not None
        weights = output.alignment.reshape(len(output.alignment), self.ear.config.heads, -1)
        frames = max(1, (window.end - window.begin) // HOP // STRIDE)
        begins = align_tokens(weights[..., :frames], STEP)
        return pieces.TokenTimes([*begins, begins[-1]], self.language)

    def _pieces(
        self, window: AudioWindow, output: RequestOutput, times: pieces.TokenTimes | None
    ) -> list[pieces.TranscriptSegment]:
        choice = output.outputs[0]
        ids = [t for t in choice.token_ids if t != self.ear.tokens.end]
        known = [p[t].logprob for t, p in zip(choice.token_ids, choice.logprobs or (), strict=False) if t in p]
        mean = sum(known) / len(known) if known else 0.0
        length = (window.end - window.begin) / RATE
        return list(pieces.cut(ids, self.ear.tokens, self.ear.tokenizer, window.begin / RATE, length, mean, times))

    def _usage(self) -> dict[str, Any]:
        return {"type": "duration", "seconds": math.ceil(self.heard.seconds)}

    def write(self, i: int, output: RequestOutput) -> Iterator[bytes]:
        """Windows in order: text of a later one waits until the earlier ones end."""
        self._held[i] += output.outputs[0].text
        self._over[i] = output.finished
        while self._at < len(self._held):
            delta, self._held[self._at] = self._held[self._at], ""
            delta = delta if self._text else delta.lstrip()
            self._text += delta
            if delta:
                yield _event({"type": "transcript.text.delta", "delta": delta})
            if not self._over[self._at]:
                break
            self._at += 1

    def end(self) -> Iterator[bytes]:
        yield _event({"type": "transcript.text.done", "text": self._text.rstrip(), "usage": self._usage()})
        yield DONE


def _event(body: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(body) + b"\n\n"
