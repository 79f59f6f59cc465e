"""What grammars are told of a tokenizer: the bytes of tokens make the text that the tokenizer decodes."""

from __future__ import annotations

import pytest
import vocabularies as v

from thalweg.errors import RequestError
from thalweg.text.grammar import vocabulary
from thalweg.text.tokenizer import Tokenizer

TEXTS = ['{"name": "Ann", "n": [1, 2.5, null]}', "naïve café 😀 ünï", "two  spaces\n\ttab"]


@pytest.mark.parametrize("make", [v.byte_level, v.byte_fallback, v.metaspace])
def test_bytes_of_tokens_make_the_text(make) -> None:  # type: ignore[no-untyped-def]
    tokenizer: Tokenizer = make()
    made = vocabulary(tokenizer, tokenizer.vocab_size + 40, [0])
    assert len(made.tokens) == tokenizer.vocab_size + 40
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False)
        decoded = tokenizer.decode(ids, skip_special_tokens=False)
        assert b"".join(made.tokens[i] for i in ids).decode(errors="replace").lstrip(" ") == decoded.lstrip(" ")


def test_special_tokens_are_no_text_and_ends_are_special() -> None:
    tokenizer = v.byte_level()
    made = vocabulary(tokenizer, tokenizer.vocab_size, [5])
    assert set(made.special) == tokenizer.control_ids | {5}
    assert made.eos == [5]


def test_a_model_without_an_end_is_refused() -> None:
    tokenizer = v.byte_level()
    with pytest.raises(RequestError, match="end-of-sequence"):
        vocabulary(tokenizer, tokenizer.vocab_size, [])


def test_tokens_that_are_no_bytes_one_by_one_are_refused() -> None:
    tokenizer = v.word_piece()
    with pytest.raises(RequestError, match="decoded to bytes separately"):
        vocabulary(tokenizer, tokenizer.vocab_size, [0])
