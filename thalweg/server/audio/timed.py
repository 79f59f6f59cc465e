"""Transcripts of Whisper with times: of windows together, or in order, each after the text before it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from thalweg.media.audio_windows import AudioWindow
from thalweg.media.mel import HOP, RATE, LogMel, spectrum
from thalweg.outputs import RequestOutput
from thalweg.params import RequestOutputKind, SamplingParams
from thalweg.server.audio import pieces
from thalweg.server.audio.alignment import align_tokens
from thalweg.server.audio.fallback import DecodedWindow, WindowDecoder
from thalweg.server.audio.protocol import AudioRequest
from thalweg.server.audio.recognizer import WindowedAudio
from thalweg.server.audio.tokens import STEP
from thalweg.server.core.job import GenerationJob

if TYPE_CHECKING:
    from thalweg.server.audio.whisper import WhisperRecognizer

ROUNDS = 30
"""Most repetitions for the rest of a window."""
ALIGNED = 2
"""Windows whose words get their times at once."""
STRIDE = 2
"""Frames of the spectrum for each that the model attends to."""
LEAST = 0.2
"""Least seconds of a rest to transcribe."""
RESET = 0.5
"""Text decoded at a higher temperature does not precede the next window."""


class TimedTranscript:
    """Segments of a transcript, with times."""

    def __init__(
        self, recognizer: WhisperRecognizer, job: GenerationJob, request: AudioRequest, audio: WindowedAudio, task: str
    ) -> None:
        self.recognizer, self.serving, self.job, self.request, self.audio = recognizer, recognizer.serving, job, request, audio
        self.task = task
        self.decoder: WindowDecoder = recognizer.open_decoder(request)

    async def transcribe(self) -> list[pieces.TranscriptSegment]:
        """Of all windows, in order."""
        return await (self._transcribe_in_order() if self.request.condition_on_previous_text else self._transcribe_windows())

    async def _transcribe_windows(self) -> list[pieces.TranscriptSegment]:
        """All windows together. A rest that a window did not transcribe is sent again, as a separate window."""
        found: list[list[pieces.TranscriptSegment]] = [[] for _ in self.audio.cuts]
        todo, job = list(enumerate(self.audio.cuts)), self.job
        for _ in range(ROUNDS):
            decoded = await self.decoder.decode(job)
            times = await self._align_words(job, [window for _, window in todo], decoded)
            for (i, window), each, known in zip(todo, decoded, times, strict=True):
                found[i] += self._pieces(window, each, each.ids, known)
            rests = ((i, self._rest(window, each)) for (i, window), each in zip(todo, decoded, strict=True))
            todo = [(i, rest) for i, rest in rests if rest is not None]
            if not todo:
                break
            mels = await asyncio.to_thread(self.recognizer.mels, self.audio.sound, [w for _, w in todo])
            prompt = self.job.prompts[0]["prompt_token_ids"]
            job = msgspec.structs.replace(self.job, prompts=[self.recognizer.write_prompt(prompt, mel) for mel in mels])
        return [piece for window in found for piece in window]

    async def _transcribe_in_order(self) -> list[pieces.TranscriptSegment]:
        """Window after window, as Whisper's authors do: a window begins where the last complete segment ends, and its prompt is
        the text before it. The spectrum is that of the whole audio."""
        recognizer, tokens, size = self.recognizer, self.recognizer.tokens, self.recognizer.config.frames
        mel = await asyncio.to_thread(spectrum, self.audio.sound, recognizer.config.bins)
        found: list[pieces.TranscriptSegment] = []
        before, at, total = tokens.encode_before(self.request.prompt), 0, mel.shape[1]
        while at < total:
            part = np.zeros((mel.shape[0], size), np.float32)
            length = min(size, total - at)
            part[:, :length] = mel[:, at : at + length]
            ids = tokens.prompt(self.audio.language, self.task, True, before)
            job = msgspec.structs.replace(self.job, prompts=[recognizer.write_prompt(ids, LogMel(part))])
            window = AudioWindow(at * HOP, (at + length) * HOP)
            (decoded,) = await self.decoder.decode(job)
            at += length
            if decoded.is_silent:
                continue
            (times,) = await self._align_words(job, [window], [decoded])
            kept, moved = self._complete(decoded.ids)
            found += self._pieces(window, decoded, kept, times)
            at += moved - length if 0 < moved < length else 0
            before = [*before, *kept] if decoded.temperature <= RESET else []
        return found

    def _complete(self, drawn: Sequence[int]) -> tuple[list[int], int]:
        """(tokens of complete segments, frames of the window up to their end). 0 frames: the window is complete."""
        end, times = self.recognizer.tokens.end, self.recognizer.tokens.times
        ids = [i for i in drawn if i != end]
        pairs = [i for i in range(1, len(ids)) if min(ids[i - 1], ids[i]) >= times]
        if not pairs or (len(ids) > 1 and ids[-1] >= times > ids[-2]):
            return ids, 0
        return ids[: pairs[-1]], (ids[pairs[-1] - 1] - times) * STRIDE

    def _rest(self, window: AudioWindow, decoded: DecodedWindow) -> AudioWindow | None:
        """The rest of a window to transcribe again: all after the last timestamp, if it is repeated. The model is trained to
        repeat it where a segment begins that the window cuts off."""
        ids, times = [t for t in decoded.ids if t != self.recognizer.tokens.end], self.recognizer.tokens.times
        if decoded.is_silent or len(ids) < 3 or min(ids[-2:]) < times:
            return None
        begin = window.begin + round((ids[-1] - times) * STEP * RATE)
        return AudioWindow(begin, window.end) if window.begin < begin < window.end - LEAST * RATE else None

    async def _align_words(
        self, job: GenerationJob, cuts: Sequence[AudioWindow], decoded: Sequence[DecodedWindow]
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
        drawn = [each.ids for each in decoded]
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
        self, window: AudioWindow, decoded: DecodedWindow, drawn: Sequence[int], times: pieces.TokenTimes | None
    ) -> list[pieces.TranscriptSegment]:
        if decoded.is_silent:
            return []
        ids = [t for t in drawn if t != self.recognizer.tokens.end]
        length = (window.end - window.begin) / RATE
        tokens, tokenizer = self.recognizer.tokens, self.recognizer.tokenizer
        found = list(pieces.cut(ids, tokens, tokenizer, window.begin / RATE, length, decoded.mean, times))
        for segment in found:
            segment.no_speech, segment.temperature = decoded.no_speech, decoded.temperature
        return found
