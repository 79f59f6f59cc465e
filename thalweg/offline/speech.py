"""Methods of `LLM` for models that speak."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from thalweg.errors import RequestError
from thalweg.media.speakers.base import Speaker, SpeechSettings
from thalweg.offline.batches import Batches, UseTqdm
from thalweg.offline.sharing import in_turn
from thalweg.outputs import RequestOutput, SpeechOutput
from thalweg.params import PoolingParams, SamplingParams


class SpeechMethods(Batches):
    """The part of `LLM` for models that speak."""

    @in_turn
    def speak(
        self, texts: str | Sequence[str], *, voice: str = "", speed: float = 1.0, seed: int = 0,
        temperature: float | None = None, max_frames: int | None = None, use_tqdm: UseTqdm = True,
    ) -> list[SpeechOutput]:  # fmt: skip
        """The speech of every text, in order. voice: "": the model's first. temperature: None: the model's default. max_frames:
        of each sentence, of a model that generates frames. RequestError, naming the field, before anything
        runs, or where the speech is longer than the model's limit."""
        speaker = self.llm_engine.frontend.speaker
        if speaker is None:
            raise RequestError("model: it does not speak", "model")
        settings = SpeechSettings(voice=voice, speed=speed, seed=seed, temperature=temperature)
        if max_frames is not None and not speaker.generates:
            raise RequestError("max_frames: this model generates no frames; omit it", "max_frames")
        pieces = [speaker.prompts(text, settings) for text in ([texts] if isinstance(texts, str) else texts)]
        prompts = [piece for each in pieces for piece in each]
        if speaker.generates:
            found = self._generate_frames(speaker, prompts, settings, max_frames, use_tqdm)
            if not all(found):
                raise RequestError("texts: the model gave no speech for a sentence; try another seed", "texts")
            prompts = [speaker.decoding(frames) for frames in found]
        done = iter(self._run(self._prepare(prompts, [PoolingParams()] * len(prompts)), use_tqdm))
        result = []
        for each in pieces:
            parts = []
            for _ in each:
                output = next(done)
                if output.error is not None:
                    raise RequestError(output.error, "texts")
                parts.append(speaker.samples(output.outputs.data))
            result.append(SpeechOutput(np.concatenate(parts), speaker.rate))
        return result

    def _generate_frames(
        self, speaker: Speaker, prompts: list[dict[str, Any]], settings: SpeechSettings, most: int | None, use_tqdm: UseTqdm
    ) -> list[list[np.ndarray]]:
        """The frames of each of these."""
        params = SamplingParams(max_tokens=most, detokenize=False, **speaker.sampling(settings))
        result = []
        for output in self._run(self._prepare(prompts, [params] * len(prompts)), use_tqdm):
            choice = output.outputs[0]
            if choice.finish_reason == "error":
                raise RequestError(output.error or "the engine could not finish this request", "texts")
            result.append(speaker.frames(choice))
        return result

    @in_turn
    def speak_answers(
        self, answers: Sequence[RequestOutput], settings: SpeechSettings, use_tqdm: UseTqdm = False
    ) -> list[SpeechOutput]:
        """The speech of answers of another model, of a model that speaks answers: of the first choice of each output. One
        without anything to speak has no samples. RequestError names the field."""
        speaker = self.llm_engine.frontend.speaker
        if speaker is None or not speaker.answers:
            raise RequestError("model: it speaks no answers of another model", "model")
        prompts = [
            speaker.answer_prompt(each.prompt_token_ids or (), each.outputs[0].token_ids, settings, each.states)
            for each in answers
        ]
        frames = iter(self._generate_frames(speaker, [p for p in prompts if p is not None], settings, None, use_tqdm))
        found = [[] if prompt is None else next(frames) for prompt in prompts]
        codes = [speaker.decoding(each) for each in found if each]
        done = iter(self._run(self._prepare(codes, [PoolingParams()] * len(codes)), use_tqdm))
        return [
            SpeechOutput(speaker.samples(next(done).outputs.data) if each else np.zeros(0, np.float32), speaker.rate)
            for each in found
        ]
