"""Tokenizers of CTC models: a character for each id, from vocab.json."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import WordLevel

from thalweg.errors import CheckpointError

FILE = "vocab.json"
CLASS = "Wav2Vec2CTCTokenizer"
SPOKEN = "VitsTokenizer"
"""Its texts have spaces, and its special tokens may be characters. Texts to be spoken are read by `media.speakers`."""
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


def is_characters(path: Path, settings: Mapping[str, Any]) -> bool:
    """Has this directory such a vocabulary? Other tokenizers with a vocab.json have more files."""
    more = (path / "merges.txt").exists() or any(path.glob("*.model")) or any(path.glob("*.spm"))
    kind = str(settings.get("tokenizer_class") or CLASS)
    return (path / FILE).exists() and not more and kind.startswith((CLASS, SPOKEN))


def characters(vocab: Mapping[str, Any], settings: Mapping[str, Any], where: Path) -> Tokenizer:
    """vocab: text -> id. settings: of tokenizer_config.json. A word delimiter is a space in texts. CheckpointError."""
    if any(isinstance(part, dict) for part in vocab.values()):
        vocab = _of_language(vocab, settings, where)
    if not all(type(i) is int and i >= 0 for i in vocab.values()) or len({*vocab.values()}) != len(vocab):
        raise CheckpointError(f"{where}: must map texts to different ids; download the file again")
    special, delimiter = [_text(settings.get(key, default)) for key, default in SPECIAL.items()], "|"
    if str(settings.get("tokenizer_class")).startswith(SPOKEN):
        special, delimiter = [token for token in special if len(token) > 1], ""
    delimiter = _text(settings.get("word_delimiter_token", delimiter))
    if settings.get("do_lower_case"):
        vocab = {token if token in special else token.lower(): i for token, i in vocab.items()}
    unknown = _text(settings.get("unk_token", SPECIAL["unk_token"]))
    result = Tokenizer(WordLevel(dict(vocab), unk_token=unknown if unknown in vocab else next(iter(vocab))))
    result.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    result.decoder = decoders.Fuse()
    if delimiter:
        result.normalizer = normalizers.Replace(" ", delimiter)
        result.decoder = decoders.Sequence([decoders.Replace(delimiter, " "), decoders.Fuse()])
    result.add_special_tokens([token for token in special if token in vocab])
    return result


def _of_language(vocab: Mapping[str, Any], settings: Mapping[str, Any], where: Path) -> Mapping[str, Any]:
    """The vocabulary of `target_lang`, or the only one. Weights in the model's main file are of that language."""
    name = settings.get("target_lang") or (next(iter(vocab)) if len(vocab) == 1 else None)
    found = vocab.get(name) if isinstance(name, str) else None
    if not isinstance(found, dict):
        raise CheckpointError(
            f"{where}: it has a vocabulary for each language; name one as target_lang in tokenizer_config.json"
        )
    return found


def _text(token: Any) -> str:
    """Of a token as tokenizer_config.json has it. "": none."""
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) else ""
