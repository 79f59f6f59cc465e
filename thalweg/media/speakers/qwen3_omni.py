"""Answers of Qwen3-Omni, spoken by its talker: the user's text and the answer's accompany the positions of its frames."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from thalweg.checkpoint.config import Config, integer
from thalweg.checkpoint.spelling import THINKER_WORDS
from thalweg.checkpoint.talker import PROMPT, around, count_codes, voices
from thalweg.checkpoint.tokenizer import load_tokenizer
from thalweg.engine.messages import Input
from thalweg.errors import RequestError
from thalweg.hal.parts.states import HiddenStates
from thalweg.hal.step import StepBatch
from thalweg.media.part_batch import make_part_batch
from thalweg.media.speakers.base import KIND, TEXT, Speaker, SpeechSettings
from thalweg.outputs import PromptStates
from thalweg.text.tokenizer import Tokenizer

RATE = 24_000
"""Samples per second of all these models. Their files do not have it."""
USUAL = {"temperature": 0.9, "top_k": 50, "repetition_penalty": 1.05}
"""Of the model's authors."""
MEDIA = ("audio_token_id", "image_token_id", "video_token_id")
"""Keys of placeholders."""
HEADER = 3
"""Tokens before an answer: the beginning of a turn, its role, and the end of the line."""


class OmniSpeaker(Speaker):
    generates = True
    tempered = True
    answers = True

    def __init__(self, path: Path, config: Config) -> None:
        outer, codes = around(config), count_codes(config)
        self.rate, self.voices, self.end = RATE, tuple(voices(config)), codes
        self.text_rows, self._path = integer(config, THINKER_WORDS), path
        nothink, begin, end, pad, first = (codes + 1 + i for i in range(len(PROMPT)))
        self._head, self._tail, self._voice = (nothink, begin, end), (pad, first), codes + 1 + len(PROMPT)
        self._nothing = self._voice + len(self.voices)
        self._pad, self._begin, self._end = (integer(outer, f"tts_{key}_token_id") for key in ("pad", "bos", "eos"))
        roles = (integer(outer, f"{key}_token_id") for key in ("im_start", "assistant", "user"))
        self._turn, self._assistant, self._user = roles
        self._media = [outer[key] for key in MEDIA if isinstance(outer.get(key), int)]

    @classmethod
    def load(cls, config: Config, path: Path) -> OmniSpeaker:
        return cls(path, config)

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        return load_tokenizer(self._path, "auto", self.text_rows)

    @cached_property
    def _line(self) -> int:
        """The token of the end of a line."""
        return self._tokenizer.encode("\n", False)[0]

    def check(self, settings: SpeechSettings) -> None:
        super().check(replace(settings, voice=self._find_voice(settings.voice)))
        if settings.speed != 1:
            raise RequestError("speed: this model has one speed; omit it", "speed")

    def _find_voice(self, name: str) -> str:
        """The voice of this name in any case."""
        return next((each for each in self.voices if each.lower() == name.lower()), name)

    def units(self, text: str) -> list[int]:
        """Token ids of a text. Special tokens in it are text."""
        return self._tokenizer.encode_with_data(text, [(0, len(text))], False) if text.strip() else []

    def prompt(self, piece: str, units: list[int], settings: SpeechSettings, number: int) -> dict[str, Any]:
        """A text as an answer without a question."""
        return {**self._write([], [self._turn, self._assistant, self._line], units, settings), "prompt": piece}

    def answer_prompt(
        self, requested: Sequence[int], answer: Sequence[int], settings: SpeechSettings, states: PromptStates | None = None
    ) -> dict[str, Any] | None:
        """Of an answer's last token, which ends it, nothing is spoken. The talker sees the user's turns only. Tokens of the
        prompt behind the beginning of the answer belong to the answer."""
        self.check(settings)
        ids = np.array(requested, np.int64)
        begins = np.flatnonzero(ids == self._turn)
        own = [int(i) for i in begins if i + 1 < ids.size and ids[i + 1] == self._assistant]
        if not own:
            raise RequestError("messages: the prompt has no turn of the assistant, so no answer can be spoken", "messages")
        users = self._find_user_tokens(ids)
        spoken = [*ids[own[-1] :].tolist(), *answer[:-1]]
        if len(spoken) <= HEADER:
            return None
        media = [] if states is None else _move_media(states, ids.size, users)
        return self._write(ids[users].tolist(), spoken[:HEADER], spoken[HEADER:], settings, media)

    def first_state(self, requested: Sequence[int]) -> int | None:
        ids = np.array(requested, np.int64)
        users = self._find_user_tokens(ids)
        found = users[np.isin(ids[users], self._media)]
        return int(found[0]) if found.size else None

    def _find_user_tokens(self, ids: np.ndarray) -> np.ndarray:
        """Positions of the tokens of the user's turns."""
        last = np.maximum.accumulate(np.where(ids == self._turn, np.arange(ids.size), 0))
        return np.flatnonzero(ids[np.minimum(last + 1, ids.size - 1)] == self._user)

    def _write(
        self, requested: Sequence[int], header: Sequence[int], answer: Sequence[int], settings: SpeechSettings,
        media: Sequence[Input] = (),
    ) -> dict[str, Any]:  # fmt: skip
        """The talker's prompt for an answer, not empty. requested: tokens of the user's turns. header: the HEADER tokens
        before the answer. media: hidden states that replace tokens of `asked`."""
        if len(header) != HEADER or not answer:
            raise ValueError(f"answer: {len(header)} tokens before an answer of {len(answer)}")
        voice = self.voices.index(self._find_voice(settings.voice)) if settings.voice else 0
        ids = [self._nothing] * (len(requested) + HEADER) + [*self._head, self._voice + voice, *self._tail]
        quiet = [self._pad] * (len(self._head) + 1)
        spoken = np.array([*requested, *header, *quiet, self._begin, *answer, self._end], np.int32)
        digest = hashlib.blake2b(TEXT.encode() + spoken.tobytes(), digest_size=16).digest()
        item = Input(kind=TEXT, digest=digest, positions=np.zeros(0, np.int32), spoken=spoken)
        return {"prompt_token_ids": ids, KIND: (item, *media)}

    def build_batches(self, processor: Any, spec: Any, items: Sequence[Input]) -> tuple[StepBatch, ...]:
        (item,) = items
        if item.kind == TEXT:
            return (make_part_batch(HiddenStates(*item.data)),)
        return super().build_batches(processor, spec, items)

    def sampling(self, settings: SpeechSettings) -> dict[str, Any]:
        given = {} if settings.temperature is None else {"temperature": settings.temperature}
        return {**USUAL, **given, "seed": settings.seed}


def _move_media(states: PromptStates, size: int, users: np.ndarray) -> list[Input]:
    """Hidden states at placeholders of media, among the tokens of the user's turns. size: tokens of the prompt. users:
    positions of those tokens in it."""
    first, result = size - len(states.values), list[Input]()
    for item in states.inputs:
        at = np.searchsorted(users, item.positions)
        if not item.positions.size or not np.array_equal(users[np.minimum(at, users.size - 1)], item.positions):
            continue  # of the system's turn
        rows = np.ascontiguousarray(states.values[item.positions - first], np.float32)
        digest = hashlib.blake2b(b"states" + rows.tobytes(), digest_size=16).digest()
        result.append(Input(
            kind=TEXT, digest=digest, positions=at.astype(np.int32), data=(rows,), axes=item.axes, lead=item.lead,
            tail=item.tail, extent=item.extent,
        ))  # fmt: skip
    return result
