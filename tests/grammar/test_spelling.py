"""What a grammar forces comes in the tokens of the tokenizer, known by the vocabulary alone."""

from __future__ import annotations

import json
from pathlib import Path

import grammar_rig as rig
import numpy as np
import pytest

from thalweg.checkpoint.hub import resolve_model
from thalweg.grammar.convert import source_of
from thalweg.grammar.grammars import Grammars
from thalweg.grammar.source import GrammarError, GrammarVocabulary
from thalweg.grammar.spelling import HEAD, Speller
from thalweg.text.grammar import vocabulary
from thalweg.text.tokenizer import Tokenizer, load_tokenizer

NAMES = [
    "name",
    "age",
    "firstName",
    "last_name",
    "email",
    "address",
    "created_at",
    "items",
    "price",
    "description",
    "user_id",
    "is_active",
    "Straße",
]
VALUE = {name: ["hello world", {"n": 12, "ok": True}, "2024-01-31", None][i % 4] for i, name in enumerate(NAMES)}


@pytest.fixture(scope="module")
def nano() -> Tokenizer:
    return load_tokenizer(Path(resolve_model("thalweg-nano")))


@pytest.fixture(scope="module")
def nanos(nano: Tokenizer) -> GrammarVocabulary:
    return vocabulary(nano, nano.vocab_size, [0])


def of(*tokens: bytes) -> GrammarVocabulary:
    return GrammarVocabulary(tokens=[*tokens, b"<eos>"], special=[len(tokens)], eos=[len(tokens)])


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_json_is_spelled_as_the_tokenizer_does(nano: Tokenizer, nanos: GrammarVocabulary, separators: tuple[str, str]) -> None:
    spell = Speller(nanos)
    for name, value in VALUE.items():
        text = json.dumps({name: value}, separators=separators, ensure_ascii=False)
        assert spell(text.encode()[:HEAD]) == list(nano.encode(text))[: len(spell(text.encode()[:HEAD]))], text


def test_a_mask_allows_the_token_of_the_tokenizer_wherever_one_text_is_left(nano: Tokenizer, nanos: GrammarVocabulary) -> None:
    schema = {"type": "object", "properties": {"firstName": {"enum": ["alpha", "albatross"]}, "flag": {"type": "boolean"}},
              "required": ["firstName", "flag"], "additionalProperties": False}  # fmt: skip
    matcher = Grammars(lambda: nanos).matcher(source_of(rig.asked("json", schema, compact=True)))
    words, single = np.zeros(-(-len(nanos.tokens) // 32), np.uint32), 0
    ids = list(nano.encode('{"firstName":"albatross","flag":true}'))
    for token in ids:
        matcher.mask(words)
        allowed = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))
        assert token in allowed
        single += allowed.size == 1
        matcher.accept([token])
    assert single > 0.7 * len(ids), "most of it is forced"


def test_the_least_id_is_merged_first_and_digits_stay_in_groups() -> None:
    single = [bytes([i]) for i in b"abcd2014 "]
    spell = Speller(of(*single, b"bc", b"ab", b"abc", b"20", b"24", b"202"))
    assert spell(b"abcd") == [11, 3], "a + bc, as bc came before ab"
    assert spell(b"2024") == [14, 7], "three digits, then one"
    assert Speller(of(*single, b"20", b"24", b"202", b"2024"))(b"2024") == [12], "four digits may be a token"


def test_a_letter_is_the_letter_and_not_its_byte() -> None:
    """Sentencepiece has bytes first, and letters of several bytes last."""
    spell = Speller(of(*(bytes([i]) for i in range(256)), b"ab", b"a", b"b", "ü".encode()))
    assert spell(b"bab") == [258, 256]
    assert spell("aü€".encode()) == [257, 259, *"€".encode()]


def test_long_texts_are_spelled_to_their_end() -> None:
    spell = Speller(of(*(bytes([i]) for i in range(256)), b"ab"))
    assert spell(b"ab" * 1000) == [256] * (HEAD // 2) + [ord("a"), ord("b")] * (1000 - HEAD // 2)


def test_a_text_without_tokens_is_an_error_and_no_other_text() -> None:
    from thalweg.grammar.compiled import Compiler

    compiler = Compiler(of(b"a", b"b", b"test", b"t", b"e", b"s"))
    with pytest.raises(GrammarError, match=r"no token for b'c', which the grammar requires$"):
        compiler.try_first(source_of(rig.asked("regex", "ac")).text)
    made = Grammars(lambda: of(b"a", b"b", b"test", b"t", b"e", b"s")).matcher(source_of(rig.asked("regex", "(a|b)c")))
    made.accept([0])
    with pytest.raises(GrammarError, match="no token for b'c'"):
        made.mask(np.zeros(1, np.uint32))
