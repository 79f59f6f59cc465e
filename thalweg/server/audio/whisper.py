"""Whisper: its prompts, the detection of the language, and transcripts with times."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from thalweg.config import SpeechConfig
from thalweg.media.audio_windows import AudioWindow, windows
from thalweg.media.mel import HOP, RATE, LogMel, log_mel
from thalweg.outputs import RequestOutput
from thalweg.params import RequestOutputKind, SamplingParams
from thalweg.server.audio import pieces
from thalweg.server.audio.alignment import align_tokens
from thalweg.server.audio.protocol import AudioRequest
from thalweg.server.audio.recognizer import Recognizer, WindowedAudio
from thalweg.server.audio.tokens import FIRST_WITHIN, STEP, WhisperTokens
from thalweg.server.core.job import GenerationJob

if TYPE_CHECKING:
    from thalweg.server.core.admission import Ticket
    from thalweg.server.core.serving import Serving

ROUNDS = 30
"""Most repetitions for the rest of a window."""
ALIGNED = 2
"""Windows whose words get their times at once."""
STRIDE = 2
"""Frames of the spectrum for each that the model attends to."""
LEAST = 0.2
"""Least seconds of a rest to transcribe."""


class WhisperRecognizer(Recognizer):
    timed = True

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
            self.tokens.prompt("en", task, request.has_timestamps, "")

    async def prepare(self, request: AudioRequest, sound: np.ndarray, task: str, ticket: Ticket) -> WindowedAudio:
        def hear() -> tuple[list[AudioWindow], list[LogMel]]:
            cuts = windows(sound, self.longest, RATE)
            return cuts, self.mels(sound, cuts)

        cuts, mels = await asyncio.to_thread(hear)
        language = self.tokens.language(request.language) if request.language else "" if self.tokens.languages else "en"
        language = language or await self._detect_language(request, mels[0], ticket)
        ids = self.tokens.prompt(language, task, request.has_timestamps, request.prompt)
        return WindowedAudio(sound, cuts, [write_prompt(ids, mel) for mel in mels], language)

    def mels(self, sound: np.ndarray, cuts: Sequence[AudioWindow]) -> list[LogMel]:
        """For a thread."""
        return [LogMel(log_mel(sound[w.begin : w.end], self.config.bins, self.config.frames)) for w in cuts]

    def timed_fields(self) -> dict[str, Any]:
        """Sampling parameters of transcripts with times."""
        return {"extra_args": {"timestamps": [self.tokens.times, self.tokens.end, FIRST_WITHIN]}, "logprobs": 0}

    async def _detect_language(self, request: AudioRequest, mel: LogMel, ticket: Ticket) -> str:
        """The language that the first window most probably is in."""
        known = self.tokens.languages
        params = SamplingParams(
            temperature=0.0, max_tokens=1, allowed_token_ids=sorted(known.values()), detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )  # fmt: skip
        job = GenerationJob(
            id=f"lang-{id(mel):x}", model=self.serving.model_name(request.model), created=0,
            prompts=[write_prompt([self.tokens.start], mel)], params=params, priority=request.priority, ticket=ticket,
        )  # fmt: skip
        self.serving.check_priority(request.priority)
        (output,) = await self.serving.run(job)
        token = output.outputs[0].token_ids[0]
        return next(code for code, i in known.items() if i == token)


def write_prompt(ids: Sequence[int], mel: LogMel) -> dict[str, Any]:
    return {"prompt_token_ids": list(ids), "multi_modal_data": {"audio": mel}}


class TimedTranscript:
    """Segments of a transcript, with times."""

    def __init__(self, recognizer: WhisperRecognizer, job: GenerationJob, request: AudioRequest, audio: WindowedAudio) -> None:
        self.recognizer, self.serving, self.job, self.request, self.audio = recognizer, recognizer.serving, job, request, audio

    async def transcribe(self) -> list[pieces.TranscriptSegment]:
        """Of all windows, in order."""
        return await self._transcribe_windows(
            await self._no_speech() if self.request.response_format == "verbose_json" else None
        )

    async def _no_speech(self) -> list[float] | None:
        """The probability of each window that nobody speaks in it: that of a token right after the first. None: the model has
        no such token."""
        token, start = self.recognizer.tokens.no_speech, self.recognizer.tokens.start
        if token is None:
            return None
        params = SamplingParams(
            temperature=0.0, max_tokens=1, prompt_logprobs=0, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY
        )
        prompts = [write_prompt([start, token], p["multi_modal_data"]["audio"]) for p in self.job.prompts]
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
        found: list[list[pieces.TranscriptSegment]] = [[] for _ in self.audio.cuts]
        todo, job = list(enumerate(self.audio.cuts)), self.job
        for _ in range(ROUNDS):
            outputs = await self.serving.run(job)
            times = await self._align_words(job, [window for _, window in todo], outputs)
            for (i, window), output, known in zip(todo, outputs, times, strict=True):
                found[i] += self._pieces(window, output, known)
            rests = ((i, self._rest(window, o)) for (i, window), o in zip(todo, outputs, strict=True))
            todo = [(i, rest) for i, rest in rests if rest is not None]
            if not todo:
                break
            mels = await asyncio.to_thread(self.recognizer.mels, self.audio.sound, [w for _, w in todo])
            prompt = self.job.prompts[0]["prompt_token_ids"]
            job = msgspec.structs.replace(self.job, prompts=[write_prompt(prompt, mel) for mel in mels])
        for segments, probability in zip(found, quiet or (), strict=False):
            for segment in segments:
                segment.no_speech = probability
        return [piece for window in found for piece in window]

    def _rest(self, window: AudioWindow, output: RequestOutput) -> AudioWindow | None:
        """The rest of a window to transcribe again: all after the last timestamp, if it is repeated. The model is trained to
        repeat it where a segment begins that the window cuts off."""
        ids, times = [t for t in output.outputs[0].token_ids if t != self.recognizer.tokens.end], self.recognizer.tokens.times
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
        return [pieces.TokenTimes([0.0], self.audio.language) if times is None else times for times in found]

    def _read_times(self, output: RequestOutput, window: AudioWindow) -> pieces.TokenTimes:
        """For a thread. The last token of a window has no weights: it ends with the one before."""
        assert output.alignment is not None
        weights = output.alignment.reshape(len(output.alignment), self.recognizer.config.heads, -1)
        frames = max(1, (window.end - window.begin) // HOP // STRIDE)
        begins = align_tokens(weights[..., :frames], STEP)
        return pieces.TokenTimes([*begins, begins[-1]], self.audio.language)

    def _pieces(
        self, window: AudioWindow, output: RequestOutput, times: pieces.TokenTimes | None
    ) -> list[pieces.TranscriptSegment]:
        choice = output.outputs[0]
        ids = [t for t in choice.token_ids if t != self.recognizer.tokens.end]
        known = [p[t].logprob for t, p in zip(choice.token_ids, choice.logprobs or (), strict=False) if t in p]
        mean = sum(known) / len(known) if known else 0.0
        length = (window.end - window.begin) / RATE
        return list(
            pieces.cut(ids, self.recognizer.tokens, self.recognizer.tokenizer, window.begin / RATE, length, mean, times)
        )
