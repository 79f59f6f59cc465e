"""Windows that are decoded again at higher temperatures, by the rules of Whisper's authors (Radford et al. 2022, section 4.5,
https://arxiv.org/abs/2212.04356)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from thalweg.outputs import RequestOutput
from thalweg.params import RequestOutputKind, SamplingParams
from thalweg.server.audio.pieces import compression_ratio
from thalweg.server.audio.protocol import WINDOW_FIELDS, AudioRequest
from thalweg.server.core.job import GenerationJob
from thalweg.server.core.sampling import shared_fields
from thalweg.server.errors import ApiError

if TYPE_CHECKING:
    from thalweg.server.audio.tokens import WhisperTokens
    from thalweg.server.core.serving import Serving
    from thalweg.text.tokenizer import Tokenizer

INCREMENT, COMPRESSION, LOGPROB, NO_SPEECH = 0.2, 2.4, -1.0, 0.6
"""Defaults of OpenAI's `whisper` command."""
HIGHEST = 1.0
FIELDS = WINDOW_FIELDS[:4]
"""Each switches the rules on. The others then have their defaults."""


@dataclass(frozen=True, slots=True)
class FallbackRules:
    temperatures: tuple[float, ...]
    compression: float = math.inf
    """A text that compresses better is repetitive."""
    logprob: float = -math.inf
    """A mean log-probability below it is a failure."""
    no_speech: float = math.inf
    """A window with a higher probability of silence and a mean log-probability below `logprob` has no text."""
    best_of: int = 1
    """Samples at a temperature above 0, of which the most probable is used."""

    def fails(self, decoded: DecodedWindow) -> bool:
        bad = compression_ratio(decoded.text) > self.compression or decoded.mean < self.logprob
        return bad and not self.is_silent(decoded)

    def is_silent(self, decoded: DecodedWindow) -> bool:
        return (decoded.no_speech or 0.0) > self.no_speech and decoded.mean < self.logprob


@dataclass(frozen=True, slots=True)
class DecodedWindow:
    output: RequestOutput
    text: str
    mean: float
    """Of the log-probabilities of its tokens, the end included."""
    temperature: float
    no_speech: float | None = None
    """Probability that nobody speaks. None: unknown."""
    is_silent: bool = False
    """Does it have no text, by the rules?"""

    @property
    def ids(self) -> list[int]:
        return list(self.output.outputs[0].token_ids)


def read_rules(request: AudioRequest) -> FallbackRules:
    """ApiError for a field that has no effect."""
    first, best = request.temperature or 0.0, request.best_of or 1
    off = all(getattr(request, name) is None for name in FIELDS)

    def value(name: str, default: float) -> float:
        found = getattr(request, name)
        return default if found is None else float(found)

    step = 0.0 if off else value(FIELDS[0], INCREMENT)
    count = 1 + (math.floor((HIGHEST - first) / step + 1e-6) if step and first < HIGHEST else 0)
    temperatures = tuple(round(first + i * step, 6) for i in range(count))
    if best > 1 and not temperatures[-1]:
        raise ApiError("best_of: requires a temperature above 0, or temperature_increment_on_fallback", "best_of")
    if off:
        return FallbackRules(temperatures, best_of=best)
    return FallbackRules(
        temperatures, value(FIELDS[1], COMPRESSION), value(FIELDS[2], LOGPROB), value(FIELDS[3], NO_SPEECH), best
    )


class WindowDecoder:
    """Decodes the windows of one request."""

    def __init__(self, serving: Serving, tokens: WhisperTokens, tokenizer: Tokenizer, request: AudioRequest) -> None:
        self._serving, self._tokens, self._tokenizer, self._rules = serving, tokens, tokenizer, read_rules(request)
        self._scores = request.response_format == "verbose_json" or self._rules.no_speech < math.inf
        """Are probabilities of silence read?"""
        self._sampling = {n: value for n in shared_fields(AudioRequest) if (value := getattr(request, n)) is not None}
        """Parameters of greedy sampling lack some of these."""

    async def decode(self, job: GenerationJob) -> list[DecodedWindow]:
        """Every prompt's, in order. Those that fail are decoded again at the next temperature, all together."""
        quiet = await self._score_silence(job) if self._scores else [None] * len(job.prompts)
        found: dict[int, DecodedWindow] = {}
        todo = list(range(len(job.prompts)))
        for temperature in self._rules.temperatures:
            drawn = await self._sample(job, todo, temperature)
            found |= {i: self._rate(each, temperature, quiet[i]) for i, each in zip(todo, drawn, strict=True)}
            todo = [i for i in todo if self._rules.fails(found[i])]
            if not todo:
                break
        return [found[i] for i in range(len(job.prompts))]

    async def _sample(self, job: GenerationJob, windows: list[int], temperature: float) -> list[RequestOutput]:
        """The most probable sample of each of these windows."""
        count = self._rules.best_of if temperature else 1
        best: list[RequestOutput] = []
        for i in range(count):
            changed: dict[str, Any] = {**self._sampling, "temperature": temperature, "logprobs": 0}
            if job.params.seed is not None:
                changed["seed"] = job.params.seed + i
            params = msgspec.structs.replace(job.params, **changed)
            drawn = await self._serving.run(
                msgspec.structs.replace(job, params=params, prompts=[job.prompts[i] for i in windows])
            )
            best = [max(pair, key=measure_mean) for pair in zip(best, drawn, strict=True)] if best else drawn
        return best

    def _rate(self, output: RequestOutput, temperature: float, quiet: float | None) -> DecodedWindow:
        text = self._tokenizer.decode([i for i in output.outputs[0].token_ids if i < self._tokens.end], True)
        result = DecodedWindow(output, text, measure_mean(output), temperature, quiet)
        return DecodedWindow(output, text, result.mean, temperature, quiet, self._rules.is_silent(result))

    async def _score_silence(self, job: GenerationJob) -> list[float | None]:
        """The probability of each window that nobody speaks in it: that of a token right after the first of the transcript."""
        token, start = self._tokens.no_speech, self._tokens.start
        if token is None:
            if self._rules.no_speech < math.inf:
                raise ApiError("no_speech_threshold: the tokenizer of this model has no token for silence", FIELDS[3])
            return [None] * len(job.prompts)
        params = SamplingParams(
            temperature=0.0, max_tokens=1, prompt_logprobs=0, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY
        )
        prompts = []
        for prompt in job.prompts:
            ids = prompt["prompt_token_ids"]
            prompts.append({**prompt, "prompt_token_ids": [*ids[: ids.index(start) + 1], token]})
        outputs = await self._serving.run(msgspec.structs.replace(job, prompts=prompts, params=params))
        return [math.exp(known[-1][token].logprob) if (known := o.prompt_logprobs) and known[-1] else None for o in outputs]


def measure_mean(output: RequestOutput) -> float:
    """Of the log-probabilities of its tokens, the end included. 0.0: it has none."""
    choice = output.outputs[0]
    known = [p[t].logprob for t, p in zip(choice.token_ids, choice.logprobs or (), strict=False) if t in p]
    return sum(known) / len(known) if known else 0.0
