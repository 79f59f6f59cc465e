"""Characters of VITS and MMS-TTS."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from thalweg.checkpoint.config import Config, integer
from thalweg.errors import CheckpointError, RequestError, UnsupportedModelError
from thalweg.media.speakers.base import Speaker

VOCAB, SETTINGS = "vocab.json", "tokenizer_config.json"


class VitsSpeaker(Speaker):
    def __init__(self, rate: int, speakers: int, vocab: dict[str, int], settings: dict[str, Any]) -> None:
        """settings: of tokenizer_config.json."""
        self.rate, self.voices = rate, tuple(map(str, range(speakers))) if speakers > 1 else ("default",)
        self._vocab, self._blank = vocab, bool(settings.get("add_blank", True))
        self._normalised, self._language = bool(settings.get("normalize", True)), settings.get("language")
        self._romanised = bool(settings.get("is_uroman", False))
        self._long = sorted((token for token in vocab if len(token) > 1), key=list(vocab).index)
        unknown = settings.get("unk_token", "<unk>")
        self._unknown = vocab.get(str(unknown.get("content") if isinstance(unknown, dict) else unknown))

    @classmethod
    def load(cls, config: Config, path: Path) -> VitsSpeaker:
        settings = _read(path / SETTINGS) if (path / SETTINGS).exists() else {}
        if settings.get("phonemize", True):
            raise UnsupportedModelError(
                f"{SETTINGS}: phonemize: this model reads phonemes, and this version converts no text to them; models of "
                "characters, such as MMS-TTS, are supported"
            )
        vocab = _read(path / VOCAB)
        if not vocab or not all(type(i) is int and 0 <= i < integer(config, "vocab_size", default=38) for i in vocab.values()):
            raise CheckpointError(f"{path / VOCAB}: must map characters to ids below vocab_size; download the file again")
        rate = integer(config, "sampling_rate", 1000, 768_000, default=16_000)
        return cls(rate, integer(config, "num_speakers", high=1 << 16, default=1), vocab, settings)

    def units(self, text: str) -> list[int]:
        """As transformers' VitsTokenizer, except where its padding token is a letter. It omits blanks around that letter at the
        ends of a text, and these models were trained with them. RequestError for characters that need romanisation."""
        text = self._normalise(text) if self._normalised else text
        if self._language == "ron":
            text = text.replace("ț", "ţ")
        if self._romanised and not text.isascii():
            raise RequestError("input: this model reads romanised text: convert it with uroman first", "input")
        if self._normalised:
            text = "".join(c for c in text if c in self._vocab).strip()
        ids = [self._vocab.get(c, self._unknown) for c in text]
        if None in ids:
            raise RequestError(f"input: this model knows no {text[ids.index(None)]!r}", "input")
        known = [i for i in ids if i is not None]
        if not self._blank or not known:
            return known
        result = [0] * (2 * len(known) + 1)
        result[1::2] = known
        return result

    def _normalise(self, text: str) -> str:
        """In lower case, except for tokens of the vocabulary."""
        result, at = "", 0
        while at < len(text):
            token = next((t for t in self._long if text.startswith(t, at)), text[at])
            result += token if token in self._vocab else token.lower()
            at += len(token)
        return result


def _read(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError) as e:
        raise CheckpointError(f"{file}: cannot be read: {e}; download the file again") from e
    if not isinstance(found, dict):
        raise CheckpointError(f"{file}: must be an object; download the file again")
    return found
