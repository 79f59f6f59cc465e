"""Tokenizers from a vocabulary that is plain data, as GGUF files hold it.

Held against the ids that llama.cpp gives for the vocabularies it comes with. What users defined is cut out before words are,
as control tokens are. Of two kinds: `gpt2` merges bytes by rank, `llama` pieces of characters by score (sentencepiece).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.text.tokenizer import Tokenizer
from thalweg.text.vocabulary import BYTE_LEVEL, CONTROL, NORMAL, SENTENCEPIECE, UNUSED, USER_DEFINED, Vocabulary
from thalweg.text.words import WORDS

_SPACE = "▁"
_NAMES = {
    "bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "seperator": "sep_token", "padding": "pad_token",
    "mask": "mask_token",
}  # fmt: skip
"""GGUF's names of special tokens -> those that chat templates know."""


def from_vocabulary(made: Vocabulary) -> Tokenizer:
    """UnsupportedModelError names a kind of vocabulary, or a way to cut words, that this version does not know."""
    ids = _ids(made)
    if made.model == BYTE_LEVEL:
        backend, bos = _byte_level(made, ids)
    elif made.model == SENTENCEPIECE:
        backend, bos = _sentencepiece(made, ids), True
    else:
        raise UnsupportedModelError(
            f"{made.where}: tokenizer.ggml.model: {made.model!r:.40} is not read by this version, which reads {BYTE_LEVEL} and "
            f"{SENTENCEPIECE}; give a tokenizer with --tokenizer DIRECTORY"
        )
    for special in (True, False):
        wanted = CONTROL if special else USER_DEFINED
        tokens = [t for t, kind in zip(made.tokens, made.kinds, strict=True) if kind == wanted and t]
        added = [AddedToken(t, normalized=False, special=special) for t in tokens]
        (backend.add_special_tokens if special else backend.add_tokens)(added)
    _post(backend, made, bos)
    named = {name: made.tokens[made.specials[key]] for key, name in _NAMES.items() if key in made.specials}
    return Tokenizer(backend, named, made.templates)


def _ids(made: Vocabulary) -> dict[str, int]:
    """Token -> id. Of equal ones the last, as in llama.cpp; an empty one gets a name."""
    return {t or f"[EMPTY_{i}]": i for i, t in enumerate(made.tokens)}


def _byte_level(made: Vocabulary, ids: dict[str, int]) -> tuple[Backend, bool]:
    advice = "give the model's own tokenizer with --tokenizer DIRECTORY"
    if made.pre is None:
        raise UnsupportedModelError(
            f"{made.where}: tokenizer.ggml.pre: missing, so how text is cut into words is not known (an old file: convert the "
            f"model anew); or {advice}"
        )
    if made.pre not in WORDS:
        raise UnsupportedModelError(
            f"{made.where}: tokenizer.ggml.pre: {made.pre!r:.60} is not known to this version; {advice}"
        )
    if made.merges is None:
        raise CheckpointError(f"{made.where}: tokenizer.ggml.merges: missing; {advice}")
    words = WORDS[made.pre]
    merges = [(m[:at], m[at + 1 :]) for m in made.merges if (at := m.find(" ", 1)) > 0]
    known = [(a, b) for a, b in merges if a in ids and b in ids and a + b in ids]
    backend = Backend(models.BPE(vocab=ids, merges=known, ignore_merges=words.whole))
    splits = [pre_tokenizers.Split(Regex(p), "isolated") for p in words.patterns]
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    backend.decoder = decoders.ByteLevel()
    return backend, words.bos


def _sentencepiece(made: Vocabulary, ids: dict[str, int]) -> Backend:
    if made.scores is None:
        raise CheckpointError(f"{made.where}: tokenizer.ggml.scores: missing: how pieces are merged is not known")
    unknown = made.specials.get("unknown")
    backend = Backend(
        models.BPE(
            vocab=ids,
            merges=_merges(made, ids),
            unk_token=None if unknown is None else made.tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefix = made.adds.get("prefix", True)
    steps: Sequence[Any] = [normalizers.Prepend(_SPACE)] if prefix else []
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", _SPACE)])
    end = [decoders.Strip(" ", 1, 0)] if prefix else []
    backend.decoder = decoders.Sequence([decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *end])
    return backend


def _merges(made: Vocabulary, ids: Mapping[str, int]) -> list[tuple[str, str]]:
    """Every way to make a token of two others, the token of the highest score first."""
    assert made.scores is not None
    found: list[tuple[float, int, str, str]] = []
    for token, id in ids.items():
        if made.kinds[id] not in (NORMAL, USER_DEFINED, UNUSED):
            continue
        score = -made.scores[id]
        for i in range(1, len(token)):
            left = token[:i]
            if left in ids and (right := token[i:]) in ids:
                found.append((score, id, left, right))
    found.sort(key=lambda f: f[:2])
    return [(a, b) for _, _, a, b in found]


def _post(backend: Backend, made: Vocabulary, bos: bool) -> None:
    """Tokens that every text gets."""
    parts = ["$A"]
    used: list[tuple[str, int]] = []
    for key, default, place in (("bos", bos, 0), ("eos", False, 2)):
        id = made.specials.get(key)
        if id is None or not made.adds.get(key, default):
            continue
        parts.insert(place, made.tokens[id])
        used.append((made.tokens[id], id))
    if used:
        # A template's parts are told apart by what they begin with, so that tokens have to be named by their ids.
        backend.post_processor = processors.TemplateProcessing(single=parts, special_tokens=used)
