"""The data of a tokenizer that grammars need: the bytes of every token, and the ids of special tokens."""

from __future__ import annotations

from collections.abc import Sequence

from thalweg.errors import RequestError
from thalweg.grammar.source import GrammarVocabulary
from thalweg.text.tokenizer import Tokenizer

FIELD = "structured_outputs"


def vocabulary(tokenizer: Tokenizer, rows: int, eos_ids: Sequence[int]) -> GrammarVocabulary:
    """The vocabulary for grammars. rows: rows of the model's embedding. Ids beyond the tokenizer's add no text. RequestError if
    tokens have no separate bytes, or no token ends a text."""
    pieces = tokenizer.pieces
    if pieces is None:
        raise RequestError(f"{FIELD}: not supported for this model, as its tokens cannot be decoded to bytes separately", FIELD)
    if not eos_ids:
        raise RequestError(f"{FIELD}: this model has no end-of-sequence token, so no grammar could end", FIELD)
    spelt = [tokenizer.token_of(i) for i in range(min(rows, tokenizer.vocab_size))]
    tokens = [
        pieces.of(t) if i not in tokenizer.added_tokens else tokenizer.added_tokens[i].encode() for i, t in enumerate(spelt)
    ]
    special = tokenizer.control_ids | set(eos_ids)
    return GrammarVocabulary(
        tokens=tokens + [b""] * (rows - len(tokens)), special=sorted(i for i in special if i < rows), eos=list(eos_ids)
    )
