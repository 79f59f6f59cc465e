"""Tokenizers of Speech2Text: the pieces of sentencepiece, with ids of vocab.json. They decode transcripts only."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders
from tokenizers.models import WordLevel

from thalweg.errors import CheckpointError

FILE = "vocab.json"
CLASS = "Speech2TextTokenizer"
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


def is_speech_pieces(path: Path, settings: Mapping[str, Any]) -> bool:
    return (path / FILE).exists() and str(settings.get("tokenizer_class")).startswith(CLASS)


def load_speech_pieces(vocab: Mapping[str, Any], settings: Mapping[str, Any], where: Path) -> Tokenizer:
    """vocab: piece -> id. settings: of tokenizer_config.json. CheckpointError."""
    if not vocab or not all(type(i) is int and i >= 0 for i in vocab.values()) or len({*vocab.values()}) != len(vocab):
        raise CheckpointError(f"{where}: must map texts to different ids; download the file again")
    special = [_text(settings.get(key, default)) for key, default in SPECIAL.items()]
    special += [token for token in vocab if token.startswith("<lang:")]
    if settings.get("do_upper_case"):
        vocab = {token if token in special else token.upper(): i for token, i in vocab.items()}
    unknown = special[list(SPECIAL).index("unk_token")]
    result = Tokenizer(WordLevel(dict(vocab), unk_token=unknown if unknown in vocab else next(iter(vocab))))
    result.decoder = decoders.Metaspace()
    result.add_special_tokens([token for token in dict.fromkeys(special) if token in vocab])
    return result


def _text(token: Any) -> str:
    """Of a token as tokenizer_config.json has it. "": none."""
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) else ""
