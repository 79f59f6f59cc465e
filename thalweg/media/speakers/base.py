"""The interface of a family that speaks: texts become utterances, and utterances the batches of its network."""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from thalweg.checkpoint.config import Config
from thalweg.engine.messages import Input
from thalweg.errors import RequestError
from thalweg.hal.parts.utterance import Utterance
from thalweg.hal.step import StepBatch
from thalweg.media.part_batch import make_part_batch
from thalweg.outputs import CompletionOutput, PromptStates

KIND = "utterance"
"""`Input.kind` of utterances, and the key of an input in a prompt."""
TEXT = "spoken_text"
"""`Input.kind` of a text whose embeddings are a prompt."""
PIECE = 400
"""Most characters of a text that are spoken together, where it can be split at a word."""
SLOWEST, FASTEST = 0.25, 4.0
SENTENCE = re.compile(r"(?<=[.!?…。！？])\s*|\n+")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechSettings:
    """How a text is spoken."""

    voice: str = ""
    """"": the speaker's first."""
    speed: float = 1.0
    seed: int = 0
    temperature: float | None = None
    """None: the model's default."""


class Speaker(ABC):
    """One model's side of the client and of the worker. Thread-safe."""

    rate: int
    """Samples per second."""
    voices: tuple[str, ...]
    most_units: ClassVar[int] = 4096
    """Units of the longest utterance."""
    generates: ClassVar[bool] = False
    """Do prompts generate frames of codes, of which `decoding` makes the utterance? Else a prompt is an utterance."""
    tempered: ClassVar[bool] = False
    """Does it sample with a temperature?"""
    answers: ClassVar[bool] = False
    """Does it speak answers of another model (`answer_prompt`)?"""
    text_rows: int = 0
    """Rows of the text's embeddings, if they are not the model's vocabulary."""
    end: int = -1
    """The token after the last frame, of models that generate."""

    @classmethod
    @abstractmethod
    def load(cls, config: Config, path: Path) -> Speaker:
        """The speaker of a model's files. CheckpointError or UnsupportedModelError."""

    @abstractmethod
    def units(self, text: str) -> list[int]:
        """The units of a text, characters for instance. Empty: it has nothing to speak."""

    def check(self, settings: SpeechSettings) -> None:
        """RequestError names the field that this model does not support."""
        if settings.voice and settings.voice not in self.voices:
            known = ", ".join(self.voices[:20]) + (", ..." if len(self.voices) > 20 else "")
            raise RequestError(f"voice: unknown {settings.voice!r:.80}; this model has {known}", "voice")
        if not SLOWEST <= settings.speed <= FASTEST:
            raise RequestError(f"speed: must be between {SLOWEST} and {FASTEST}, not {settings.speed!r:.40}", "speed")
        if settings.temperature is not None and not self.tempered:
            raise RequestError("temperature: this model does not sample tokens; omit it", "temperature")

    def prompt(self, piece: str, units: list[int], settings: SpeechSettings, number: int) -> dict[str, Any]:
        """The engine's prompt of a piece, number `number` of its text."""
        return {
            "prompt_token_ids": units,
            "prompt": piece,
            KIND: self.utterance(np.array(units, np.int32)[:, None], settings, number),
        }

    def answer_prompt(
        self, requested: Sequence[int], answer: Sequence[int], settings: SpeechSettings, states: PromptStates | None = None
    ) -> dict[str, Any] | None:
        """The engine's prompt for an answer of another model. requested: its prompt. answer: its tokens.
        states: its hidden states at placeholders of media. None: there is nothing to speak.
        RequestError for settings, as `check`, and for prompts without a turn to answer."""
        raise NotImplementedError

    def first_state(self, requested: Sequence[int]) -> int | None:
        """The position of the first token of this prompt whose hidden state `answer_prompt` requires. None: there is none."""
        return None

    def sampling(self, settings: SpeechSettings) -> dict[str, Any]:
        """Fields of SamplingParams, of models that generate."""
        raise NotImplementedError

    def frames(self, choice: CompletionOutput) -> list[np.ndarray]:
        """i32[books] of each frame of an output, of models that generate."""
        found = zip(choice.token_ids, choice.frames or (), strict=True)
        return [np.array([token, *frame], np.int32) for token, frame in found if token != self.end]

    def decoding(self, frames: Sequence[np.ndarray]) -> dict[str, Any]:
        """The prompt whose result is the samples of these frames. At least one."""
        return {"prompt_token_ids": [0], KIND: self.utterance(np.stack(frames), SpeechSettings())}

    def prompts(self, text: str, settings: SpeechSettings) -> list[dict[str, Any]]:
        """Prompts of the engine, one for each sentence or a few. RequestError: there is nothing to speak, or one is too long.
        Sentence n of a text has the seed `settings.seed` + n."""
        self.check(settings)
        result: list[dict[str, Any]] = []
        for piece in split_sentences(text):
            units = self.units(piece)
            if len(units) > self.most_units:
                raise RequestError(f"input: a sentence of {len(units)} units; at most {self.most_units}: split it", "input")
            if units:
                result.append(self.prompt(piece, units, settings, len(result)))
        if not result:
            raise RequestError("input: has no character that this model can speak", "input")
        return result

    def utterance(self, units: np.ndarray, settings: SpeechSettings, number: int = 0) -> Input:
        """units i32[rows, books]. number: of the utterance in its text."""
        voice = self.voices.index(settings.voice) if settings.voice else 0
        data = self.arrays(units, settings.speed, voice, settings.seed + number)
        digest = hashlib.blake2b(KIND.encode(), digest_size=16)
        for each in data:
            digest.update(repr((each.shape, each.dtype.str)).encode() + each.tobytes())
        return Input(kind=KIND, digest=digest.digest(), positions=np.zeros(1, np.int32), data=data)

    @staticmethod
    def arrays(units: np.ndarray, speed: float = 1.0, voice: int = 0, seed: int = 0) -> tuple[np.ndarray, ...]:
        """`Input.data`: the fields of `hal.parts.utterance`, in order."""
        words = np.array([seed & (1 << 64) - 1], np.uint64).view(np.int32)[None]
        return units, np.array([speed], np.float32), np.array([voice], np.int32), words

    def samples(self, rows: np.ndarray) -> np.ndarray:
        """f32[n] of an utterance's result f32[rows, hop]. RequestError: it is longer than the model's limit."""
        if not len(rows):
            raise RequestError("input: a sentence would be longer than this model's limit: split it, or raise speed", "input")
        return rows.reshape(-1)

    def build_batches(self, processor: Any, spec: Any, items: Sequence[Input]) -> tuple[StepBatch, ...]:
        """As `MediaKind.build_batches`, of one utterance."""
        (item,) = items
        units, speed, voice, seed = item.data
        return (make_part_batch(Utterance(units=units, speed=speed, voice=voice, seed=seed)),)

    def count_rows(self, processor: Any, item: Input) -> int | None:
        """As `MediaKind.count_rows`."""
        return None


def split_sentences(text: str) -> list[str]:
    """Pieces of at most PIECE characters, each of one or several whole sentences. Longer sentences are split at words."""
    result = [""]
    for sentence in filter(None, (part.strip() for part in SENTENCE.split(text))):
        for part in _split_words(sentence):
            if result[-1] and len(result[-1]) + 1 + len(part) > PIECE:
                result.append("")
            result[-1] += " " * bool(result[-1]) + part
    return [piece for piece in result if piece]


def _split_words(sentence: str) -> list[str]:
    result = [""]
    for word in sentence.split():
        if result[-1] and len(result[-1]) + 1 + len(word) > PIECE:
            result.append("")
        result[-1] += " " * bool(result[-1]) + word
    return result
