"""What grammars must know of a tokenizer: the bytes of every token, and which tokens are no text."""

from __future__ import annotations

from collections.abc import Sequence

from thalweg.errors import RequestError
from thalweg.grammar.source import GrammarVocabulary
from thalweg.text.tokenizer import Tokenizer

FIELD = "structured_outputs"


def vocabulary(tokenizer: Tokenizer, rows: int, eos_ids: Sequence[int]) -> GrammarVocabulary:
    """rows: of the model's embedding; ids beyond the tokenizer's add no text. RequestError where tokens cannot be told apart
    as bytes, or nothing ends a text."""
    pieces = tokenizer.pieces
    if pieces is None:
        raise RequestError(
            f"{FIELD}: this model's tokens cannot be turned to bytes one by one, so no grammar can be kept", FIELD
        )
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
