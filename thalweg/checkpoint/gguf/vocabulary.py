"""Reads the vocabulary in a GGUF file's metadata: tokens and their kinds, merges or scores, special ids, chat templates.
Missing keys have llama.cpp's defaults. `thalweg.text.gguf` implements the tokenization.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from thalweg.checkpoint.gguf.charsmap import check_charsmap
from thalweg.checkpoint.gguf.files import GGUFFiles
from thalweg.checkpoint.gguf.header import Texts
from thalweg.checkpoint.gguf.keys import MAX_TEXTS, Keys
from thalweg.errors import CheckpointError
from thalweg.params import NUMBERS, OF_MODEL
from thalweg.text.vocabulary import CONTROL, NORMAL, SENTENCEPIECE, UNIGRAM, USER_DEFINED, WORDPIECE, Vocabulary

_SPECIALS = ("bos", "eos", "eot", "eom", "unknown", "seperator", "padding", "mask", "cls")
"""Names in tokenizer.ggml.{}_token_id, in the files' spelling."""
_DEFAULTS: Mapping[str, Mapping[str, int]] = {
    SENTENCEPIECE: {"bos": 1, "eos": 2, "unknown": 0},
    WORDPIECE: {"bos": 101, "seperator": 102, "unknown": 100, "padding": 0, "mask": 103},
    UNIGRAM: {"eos": 1, "unknown": 2, "padding": 0},
}
_ENDS = frozenset({
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>", "<|endoftext|>",
    "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>",
    "<|tool_response>", "[e~[",
    "<｜end▁of▁sentence｜>",
})  # fmt: skip
"""Control tokens that end an answer, as in llama.cpp. Many files name only the end of a text."""
_HARMONY = ({"<|return|>", "<|call|>"}, {"<|flush|>", "<|calls|>"})
"""Vocabularies with one of these sets, where "<|end|>" ends only a part of an answer."""
_SPELLED = {"temperature": "temp", "repetition_penalty": "penalty_repeat"}
_SAMPLING = {_SPELLED.get(name, name): name for name in OF_MODEL}
"""Name in general.sampling.{} -> key of generation_config.json."""


def vocabulary(files: GGUFFiles) -> Vocabulary:
    """The vocabulary. CheckpointError names the missing or wrong key."""
    keys = Keys(files.path, files.metadata, "tokenizer.ggml.")
    model, tokens = keys.text("model"), keys.texts("tokens")
    if not tokens:
        raise CheckpointError(
            f"{files.path}: tokenizer.ggml.tokens: missing: the file has no vocabulary; give one with --tokenizer DIRECTORY"
        )
    kinds, scores = keys.numbers("token_type", "iu"), keys.numbers("scores", "fiu")
    table = keys.numbers("precompiled_charsmap", "iu") if model == UNIGRAM else None
    for name, array in (("token_type", kinds), ("scores", scores)):
        if array is not None and len(array) < len(tokens):
            raise CheckpointError(f"{files.path}: tokenizer.ggml.{name}: says nothing of some of the {len(tokens)} tokens")
    return Vocabulary(
        str(files.path), model, keys.text("pre", "") or None, tokens,
        [NORMAL] * len(tokens) if kinds is None else kinds[: len(tokens)].tolist(),
        None if scores is None else scores[: len(tokens)].tolist(),
        keys.texts("merges"), _specials(keys, model, len(tokens)),
        {n: keys.flag(k, False) for n, k in _FLAGS.items() if k in keys}, _templates(files),
        None if table is None else check_charsmap(table.astype(np.uint8).tobytes(), str(files.path)),
    )  # fmt: skip


_FLAGS = {
    "bos": "add_bos_token", "eos": "add_eos_token", "prefix": "add_space_prefix", "lowercase": "normalizer.lowercase",
    "accents": "normalizer.strip_accents", "spaces": "remove_extra_whitespaces",
}  # fmt: skip


def _specials(keys: Keys, model: str, size: int) -> dict[str, int]:
    """Name -> id of special tokens. Ids beyond the vocabulary are ignored."""
    found = {
        n: keys.integer(f"{n}_token_id", default=_DEFAULTS.get(model, {}).get(n, -1), low=-1, high=1 << 33) for n in _SPECIALS
    }
    return {n: i for n, i in found.items() if 0 <= i < size}


def _templates(files: GGUFFiles) -> dict[str, str]:
    """Chat templates: `tokenizer.chat_template` ("default"), and `tokenizer.chat_template.NAME`."""
    start = "tokenizer.chat_template"
    named = {"default": files.metadata.get(start)}
    named |= {k.removeprefix(f"{start}."): v for k, v in files.metadata.items() if k.startswith(f"{start}.")}
    return {name: source for name, source in named.items() if isinstance(source, str) and source}


@lru_cache(maxsize=2)
def ends(files: GGUFFiles) -> tuple[int, ...]:
    """Ids of tokens that end generation, the end of a text first. (): no vocabulary."""
    keys = Keys(files.path, files.metadata, "tokenizer.ggml.")
    tokens = files.metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, Texts) or len(tokens) > MAX_TEXTS:
        return ()
    specials = _specials(keys, keys.text("model", ""), len(tokens))
    found = {specials[n]: None for n in ("eos", "eot", "eom") if n in specials}
    kinds = keys.numbers("token_type", "iu")
    marked = [] if kinds is None else np.flatnonzero((kinds == CONTROL) | (kinds == USER_DEFINED)).tolist()
    texts = {token: i for i, token in tokens.some(marked) if token in _ENDS}
    if any(pair <= texts.keys() for pair in _HARMONY):
        texts.pop("<|end|>", None)
    return tuple(found | dict.fromkeys(texts.values()))


def sampling(files: GGUFFiles) -> dict[str, Any]:
    """The file's sampling parameters, with the keys of generation_config.json."""
    keys = Keys(files.path, files.metadata, "general.sampling.")
    defaults = {name: ours for name, ours in _SAMPLING.items() if name in keys}
    return {ours: keys.integer(name) if NUMBERS[ours].kind is int else keys.real(name) for name, ours in defaults.items()}
