"""Tokens that set the language and task of a transcript, by their names in every Whisper tokenizer."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from functools import cached_property

from thalweg.config import SpeechConfig
from thalweg.server.errors import ApiError
from thalweg.text.tokenizer import Tokenizer

LANGUAGE = re.compile(r"<\|([a-z]{2,3})\|>")
STEP = 0.02
"""Seconds from one time to the next."""
FIRST_WITHIN = 50
"""Steps within which the first time lies."""
NO_SPEECH = ("<|nospeech|>", "<|nocaptions|>")
"""Names of one token, in newer and in older files."""
NAMES = {"english": "en", "german": "de", "french": "fr", "spanish": "es", "italian": "it", "portuguese": "pt", "dutch": "nl",
         "russian": "ru", "chinese": "zh", "japanese": "ja", "korean": "ko", "arabic": "ar", "hindi": "hi", "turkish": "tr",
         "polish": "pl", "ukrainian": "uk", "swedish": "sv", "czech": "cs"}  # fmt: skip
"""Names that clients write instead of codes. OpenAI accepts only codes."""


def read_code(requested: str) -> str:
    """The code of a language, from a code with or without a region, or a name."""
    return NAMES.get(requested.lower(), requested.lower().replace("_", "-").partition("-")[0])


def read_language(requested: str, known: Collection[str]) -> str:
    """The same, if it is one of these. ApiError."""
    code = read_code(requested)
    if code not in known:
        raise ApiError(f"language: unknown {requested!r}; supported: {', '.join(sorted(known))}", "language")
    return code


class WhisperTokens:
    """Made once per server."""

    def __init__(self, tokenizer: Tokenizer, config: SpeechConfig, max_len: int) -> None:
        self._tokenizer, self._multilingual, self._max_len = tokenizer, config.multilingual, max_len
        self.start = self._id("<|startoftranscript|>")
        self.end = self._id("<|endoftext|>")
        self.no_times = self._id("<|notimestamps|>")
        self.no_speech = next((i for name in NO_SPEECH if (i := tokenizer.id_of(name)) is not None), None)
        """The token whose probability at the start tells whether nobody speaks. None: the tokenizer has none."""

    def _id(self, token: str) -> int:
        found = self._tokenizer.id_of(token)
        if found is None:
            raise ApiError(f"model: its tokenizer has no {token}, so it writes no transcripts here", "model")
        return found

    @property
    def times(self) -> int:
        """The first timestamp token."""
        return self.no_times + 1

    @cached_property
    def languages(self) -> dict[str, int]:
        """Code -> token. Empty for an English-only model."""
        if not self._multilingual:
            return {}
        last = self._tokenizer.vocab_size
        names = ((i, LANGUAGE.fullmatch(self._tokenizer.token_of(i))) for i in range(self.start, min(last, self.times)))
        return {name[1]: i for i, name in names if name is not None}

    def language(self, requested: str) -> str:
        """The code of a language that a client named. ApiError."""
        if self.languages:
            return read_language(requested, self.languages)
        if read_code(requested) != "en":
            raise ApiError(f"language: this model is English-only; got {requested!r}", "language")
        return "en"

    def prompt(self, language: str, task: str, timed: bool, before: Sequence[int]) -> list[int]:
        """The prompt of a transcript. before: preceding tokens, of which it has the end: as many as the model was trained on,
        half of its context. ApiError."""
        ids = [self._id("<|startofprev|>"), *before[-(self._max_len // 2 - 1) :]] if before else []
        ids.append(self.start)
        if self.languages:
            ids += [self.languages[language], self._id(f"<|{task}|>")]
        elif task != "transcribe":
            raise ApiError("model: it is English-only; translation is not supported", "model")
        return ids if timed else [*ids, self.no_times]

    def encode_before(self, text: str) -> list[int]:
        """Text that precedes a transcript."""
        if not text.strip():
            return []
        text = " " + text.strip()
        return self._tokenizer.encode_with_data(text, [(0, len(text))], False)
