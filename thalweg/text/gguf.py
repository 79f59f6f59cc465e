"""Builds tokenizers from vocabularies as plain data, as in GGUF files.

Tests compare the ids with llama.cpp's for its bundled vocabularies. User-defined tokens are matched before words, like control
tokens. Five kinds are supported. `gpt2` merges bytes by rank, `gemma4` characters by rank, and `llama` pieces by score
(sentencepiece). `bert` splits off the longest piece at the beginning of a word (WordPiece). `t5` maximises the sum of scores
(Unigram).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.text.tokenizer import Tokenizer
from thalweg.text.vocabulary import (
    BYTE_LEVEL,
    CHARACTERS,
    CONTROL,
    NORMAL,
    SENTENCEPIECE,
    UNIGRAM,
    UNUSED,
    USER_DEFINED,
    WORDPIECE,
    Vocabulary,
)  # fmt: skip
from thalweg.text.words import WORDS

_SPACE = "▁"
_INSIDE = "##"
"""BERT's prefix of pieces within a word."""
_NAMES = {
    "bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "seperator": "sep_token", "padding": "pad_token",
    "mask": "mask_token", "cls": "cls_token",
}  # fmt: skip
"""GGUF's names of special tokens -> names for chat templates."""


def from_vocabulary(result: Vocabulary) -> Tokenizer:
    """The tokenizer of a vocabulary. UnsupportedModelError names an unknown kind of vocabulary or word pattern."""
    ids = _ids(result)
    if result.model == WORDPIECE:
        return _wordpiece(result)
    if result.model == BYTE_LEVEL:
        backend, bos = _byte_level(result, ids)
    elif result.model == CHARACTERS:
        backend, bos = _characters(result, ids), True
        result = replace(result, adds={**result.adds, "bos": True})  # regardless of the file, as in llama.cpp
    elif result.model == SENTENCEPIECE:
        backend, bos = _sentencepiece(result, ids), True
    elif result.model == UNIGRAM:
        backend, bos = _unigram(result), False
    else:
        raise UnsupportedModelError(
            f"{result.where}: tokenizer.ggml.model: {result.model!r:.40} is not read by this version, which reads "
            f"{BYTE_LEVEL}, "
            f"{CHARACTERS}, {SENTENCEPIECE}, {WORDPIECE} and {UNIGRAM}; give a tokenizer with --tokenizer DIRECTORY"
        )
    _add(backend, result)
    _post(backend, result, bos)
    return Tokenizer(backend, _special_tokens(result), result.templates)


def _add(backend: Backend, result: Vocabulary) -> None:
    """Add control tokens and user-defined tokens."""
    for special in (True, False):
        wanted = CONTROL if special else USER_DEFINED
        tokens = [t for t, kind in zip(result.tokens, result.kinds, strict=True) if kind == wanted and t]
        added = [AddedToken(t, normalized=False, special=special) for t in tokens]
        (backend.add_special_tokens if special else backend.add_tokens)(added)


def _special_tokens(result: Vocabulary) -> dict[str, str]:
    return {name: result.tokens[result.specials[key]] for key, name in _NAMES.items() if key in result.specials}


def _ids(result: Vocabulary) -> dict[str, int]:
    """Token -> id. The last of equal tokens applies, as in llama.cpp. Empty tokens get a name."""
    return {t or f"[EMPTY_{i}]": i for i, t in enumerate(result.tokens)}


def _byte_level(result: Vocabulary, ids: dict[str, int]) -> tuple[Backend, bool]:
    advice = "give the model's own tokenizer with --tokenizer DIRECTORY"
    if result.pre is None:
        raise UnsupportedModelError(
            f"{result.where}: tokenizer.ggml.pre: missing, so the word patterns are unknown; convert the model "
            f"again with a current llama.cpp, or {advice}"
        )
    if result.pre not in WORDS:
        raise UnsupportedModelError(
            f"{result.where}: tokenizer.ggml.pre: {result.pre!r:.60} is not known to this version; {advice}"
        )
    if result.merges is None:
        raise CheckpointError(f"{result.where}: tokenizer.ggml.merges: missing; {advice}")
    words = WORDS[result.pre]
    backend = Backend(models.BPE(vocab=ids, merges=_parse_merges(result.merges, ids), ignore_merges=words.whole))
    splits = [pre_tokenizers.Split(Regex(p), "isolated") for p in words.patterns]
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    backend.decoder = decoders.ByteLevel()
    return backend, words.bos


def _parse_merges(merges: Sequence[str], ids: Mapping[str, int]) -> list[tuple[str, str]]:
    """Merges of a file, by rank: two tokens with a space between."""
    pairs = [(m[:at], m[at + 1 :]) for m in merges if (at := m.find(" ", 1)) > 0]
    return [(a, b) for a, b in pairs if a in ids and b in ids and a + b in ids]


def _characters(result: Vocabulary, ids: dict[str, int]) -> Backend:
    """Gemma 4's tokenizer: sentencepiece's text form, with merges instead of scores, within lines."""
    if result.merges is None:
        raise CheckpointError(f"{result.where}: tokenizer.ggml.merges: missing: how characters are merged is not known")
    unknown = result.specials.get("unknown")
    backend = Backend(
        models.BPE(
            vocab=ids,
            merges=_parse_merges(result.merges, ids),
            unk_token=None if unknown is None else result.tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    backend.normalizer = normalizers.Replace(" ", _SPACE)
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("[^\\n]+|\\n+"), "isolated")
    backend.decoder = decoders.Sequence([decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    return backend


def _sentencepiece(result: Vocabulary, ids: dict[str, int]) -> Backend:
    if result.scores is None:
        raise CheckpointError(f"{result.where}: tokenizer.ggml.scores: missing: how pieces are merged is not known")
    unknown = result.specials.get("unknown")
    backend = Backend(
        models.BPE(
            vocab=ids,
            merges=_merges(result, ids),
            unk_token=None if unknown is None else result.tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefix = result.adds.get("prefix", True)
    steps: Sequence[Any] = [normalizers.Prepend(_SPACE)] if prefix else []
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", _SPACE)])
    end = [decoders.Strip(" ", 1, 0)] if prefix else []
    backend.decoder = decoders.Sequence([decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *end])
    return backend


def _unigram(result: Vocabulary) -> Backend:
    """Built as transformers builds XLM-RoBERTa's and T5's: a space begins a word."""
    unknown = result.specials.get("unknown")
    if result.scores is None or result.charsmap is None or unknown is None:
        missing = "scores" if result.scores is None else "unknown_token_id" if unknown is None else "precompiled_charsmap"
        raise CheckpointError(f"{result.where}: tokenizer.ggml.{missing}: missing: how text is cut into pieces is not known")
    if not result.adds.get("prefix", False) or not result.adds.get("spaces", False):
        raise UnsupportedModelError(
            f"{result.where}: tokenizer.ggml.add_space_prefix, remove_extra_whitespaces: this version reads t5 vocabularies "
            "that have both; give the model's own tokenizer with --tokenizer DIRECTORY"
        )
    # Unused tokens must not set the score of unknown text, which is relative to the least score. No text has NUL.
    least = min((s for s, kind in zip(result.scores, result.kinds, strict=True) if kind == NORMAL), default=0.0)
    pieces = [
        (f"{token}\0", least) if kind == UNUSED and score < least else (token, float(score))
        for token, score, kind in zip(result.tokens, result.scores, result.kinds, strict=True)
    ]
    backend = Backend(models.Unigram(pieces, unk_id=unknown, byte_fallback=False))
    backend.normalizer = normalizers.Precompiled(result.charsmap)
    space: dict[str, Any] = {"replacement": _SPACE, "prepend_scheme": "always"}
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(**space)])
    backend.decoder = decoders.Metaspace(**space)
    return backend


def _wordpiece(result: Vocabulary) -> Tokenizer:
    """BERT's tokenizer. Files mark pieces at the beginning of words, and BERT those within: pieces get BERT's names back. Words
    of more than 100 characters are unknown, as in BERT's tokenizer and unlike llama.cpp."""
    plain = (NORMAL, UNUSED)
    tokens = [_piece(t) if kind in plain else t for t, kind in zip(result.tokens, result.kinds, strict=True)]
    specials = {**{"cls" if key == "bos" else key: id for key, id in result.specials.items()}, **result.specials}
    specials.pop("bos", None)  # newer files have the same id there
    result = replace(result, tokens=tokens, specials=specials)
    for key in ("cls", "seperator", "unknown"):
        if key not in specials:
            raise CheckpointError(f"{result.where}: tokenizer.ggml.{key}_token_id: missing, or beyond the vocabulary")
    cls, sep, unknown = (tokens[specials[key]] for key in ("cls", "seperator", "unknown"))
    backend = Backend(models.WordPiece(_ids(result), unk_token=unknown, continuing_subword_prefix=_INSIDE))
    lower = result.adds.get("lowercase", True)
    backend.normalizer = normalizers.BertNormalizer(lowercase=lower, strip_accents=result.adds.get("accents", lower))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix=_INSIDE)
    _add(backend, result)
    around = f"{cls}:0 $A:0 {sep}:0"
    ids = [(cls, specials["cls"]), (sep, specials["seperator"])]
    backend.post_processor = processors.TemplateProcessing(single=around, pair=f"{around} $B:1 {sep}:1", special_tokens=ids)
    return Tokenizer(backend, _special_tokens(result), result.templates)


def _piece(token: str) -> str:
    return token[1:] if token.startswith(_SPACE) else _INSIDE + token


def _merges(result: Vocabulary, ids: Mapping[str, int]) -> list[tuple[str, str]]:
    """Every pair of tokens that joins to a token, ordered by the joined token's score, highest first."""
    assert result.scores is not None
    found: list[tuple[float, int, str, str]] = []
    for token, id in ids.items():
        if result.kinds[id] not in (NORMAL, USER_DEFINED, UNUSED):
            continue
        score = -result.scores[id]
        for i in range(1, len(token)):
            left = token[:i]
            if left in ids and (right := token[i:]) in ids:
                found.append((score, id, left, right))
    found.sort(key=lambda f: f[:2])
    return [(a, b) for _, _, a, b in found]


def _post(backend: Backend, result: Vocabulary, bos: bool) -> None:
    """Set the tokens added to every text."""
    parts = ["$A"]
    used: list[tuple[str, int]] = []
    for key, default, place in (("bos", bos, 0), ("eos", result.model == UNIGRAM, 2)):
        id = result.specials.get(key)
        if id is None or not result.adds.get(key, default):
            continue
        parts.insert(place, result.tokens[id])
        used.append((result.tokens[id], id))
    if used:
        # A template recognises its parts by their first character, so tokens must be named by id.
        backend.post_processor = processors.TemplateProcessing(single=parts, special_tokens=used)
