"""Methods of `LLM` for models that speak."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from thalweg.errors import RequestError
from thalweg.media.speakers.base import SpeechSettings
from thalweg.offline.batches import Batches, UseTqdm
from thalweg.offline.sharing import in_turn
from thalweg.outputs import SpeechOutput
from thalweg.params import PoolingParams


class SpeechMethods(Batches):
    """The part of `LLM` for models that speak."""

    @in_turn
    def speak(
        self, texts: str | Sequence[str], *, voice: str = "", speed: float = 1.0, seed: int = 0, use_tqdm: UseTqdm = True
    ) -> list[SpeechOutput]:
        """The speech of every text, in order. voice: "": the model's first. RequestError, naming the field, before anything
        runs, or where the speech is longer than the model's limit."""
        speaker = self.llm_engine.frontend.speaker
        if speaker is None:
            raise RequestError("model: it does not speak", "model")
        settings = SpeechSettings(voice=voice, speed=speed, seed=seed)
        pieces = [speaker.prompts(text, settings) for text in ([texts] if isinstance(texts, str) else texts)]
        prompts = [piece for each in pieces for piece in each]
        done = iter(self._run(self._prepare(prompts, [PoolingParams()] * len(prompts)), use_tqdm))
        made = []
        for each in pieces:
            parts = []
            for _ in each:
                output = next(done)
                if output.error is not None:
                    raise RequestError(output.error, "texts")
                parts.append(speaker.samples(output.outputs.data))
            made.append(SpeechOutput(np.concatenate(parts), speaker.rate))
        return made
