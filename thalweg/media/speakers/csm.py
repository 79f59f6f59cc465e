"""Texts of CSM: a speaker's number, then the text. Its model generates frames of codes."""

from __future__ import annotations

import hashlib
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from thalweg.checkpoint.config import Config, generation_defaults, integer, real
from thalweg.checkpoint.tokenizer import load_tokenizer
from thalweg.engine.messages import Input
from thalweg.errors import CheckpointError, RequestError, UnsupportedModelError
from thalweg.media.speakers.base import KIND, TEXT, Speaker, SpeechSettings
from thalweg.text.tokenizer import Tokenizer

SPEAKERS = 10
USUAL = {"temperature": 0.9, "top_k": 50}
"""Of the model's authors."""


class CsmSpeaker(Speaker):
    generates = True
    tempered = True

    def __init__(self, path: Path, rate: int, end: int, rows: int, sampling: dict[str, Any]) -> None:
        """end: the token that ends a text's speech. rows: of the text's embeddings."""
        self.rate, self.voices, self.end, self.text_rows = rate, tuple(map(str, range(SPEAKERS))), end, rows
        self._path, self._sampling = path, sampling

    @classmethod
    def load(cls, config: Config, path: Path) -> CsmSpeaker:
        codec, options = config.get("codec_config"), {k: v for k, v in generation_defaults(path).items() if v is not None}
        if not isinstance(codec, dict):
            raise CheckpointError("config.json: codec_config: missing")
        for name in USUAL:
            other = options.get(f"depth_decoder_{name}")
            if other is not None and other != options.get(name, USUAL[name]):
                raise UnsupportedModelError(f"generation_config.json: depth_decoder_{name}: only that of {name} is supported")
        sampling = {
            "temperature": real(options, "temperature", 0, 1e3, default=USUAL["temperature"], where="generation_config.json"),
            "top_k": integer(options, "top_k", 0, 1 << 30, default=50, where="generation_config.json"),
        }
        return cls(
            path, integer(codec, "sampling_rate", 100, 768_000, default=24_000), integer(config, "vocab_size", default=2051),
            integer(config, "text_vocab_size", high=1 << 24, default=128_256), sampling,
        )  # fmt: skip

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        return load_tokenizer(self._path, "auto", self.text_rows)

    def check(self, settings: SpeechSettings) -> None:
        super().check(settings)
        if settings.speed != 1:
            raise RequestError("speed: this model has one speed; omit it", "speed")

    def units(self, text: str) -> list[int]:
        """Token ids of a text without its speaker. Special tokens in it are text."""
        return self._tokenizer.encode_with_data(text, [(0, len(text))], False) if text.strip() else []

    def prompt(self, piece: str, units: list[int], settings: SpeechSettings, number: int) -> dict[str, Any]:
        head = f"[{settings.voice or self.voices[0]}]"
        ids = self._tokenizer.encode_with_data(head + piece, [(0, len(head + piece))])
        data = np.array(ids, np.int32)
        digest = hashlib.blake2b(TEXT.encode() + data.tobytes(), digest_size=16).digest()
        item = Input(kind=TEXT, digest=digest, positions=np.arange(len(ids), dtype=np.int32), data=self.arrays(data[:, None]))
        return {"prompt_token_ids": [0] * len(ids), "prompt": piece, KIND: item}

    def sampling(self, settings: SpeechSettings) -> dict[str, Any]:
        given = {} if settings.temperature is None else {"temperature": settings.temperature}
        return {**self._sampling, **given, "seed": settings.seed}
