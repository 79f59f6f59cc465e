"""Streamed text equals the full decode of the tokenizers library and never holds half a character."""

from __future__ import annotations

import pytest
import vocabularies as v
from amounts import some
from hypothesis import given, settings
from hypothesis import strategies as st

from thalweg.text.detokenizer import Detokenizer
from thalweg.text.marks import id_of, mark
from thalweg.text.tokenizer import Tokenizer

STREAMED = {"byte_level": v.byte_level, "gemma": lambda: v.byte_fallback(False), "llama2": v.byte_fallback, "t5": v.metaspace}
texts = st.text(st.sampled_from("aé the river.\n\t  😀👩‍川мир“\ufffd"), max_size=30) | st.text(max_size=20)


def stream(tok: Tokenizer, prompt: list[int], ids: list[int], skip: bool = True) -> str:
    d = Detokenizer(tok, prompt, skip)
    return "".join([d.push([i]) for i in ids]) + d.finish()


def continuation(tok: Tokenizer, prompt: list[int], ids: list[int], skip: bool = True) -> str:
    whole, before = tok.decode(prompt + ids, skip), tok.decode(prompt, skip)
    assert whole.startswith(before)
    return whole[len(before) :]


@pytest.mark.parametrize("family", [*STREAMED, "bert"])
@given(text=texts, prompt=texts, skip=st.booleans())
@settings(max_examples=some(20, 60), deadline=None)
@pytest.mark.sampled(1)
def test_stream_of_encoded_text_equals_full_decode(family: str, text: str, prompt: str, skip: bool) -> None:
    tok = v.word_piece() if family == "bert" else STREAMED[family]()
    before = tok.encode(prompt + ("." if family == "bert" else ""))
    ids = tok.encode(text + "</s>", add_special_tokens=False)
    assert stream(tok, before, ids, skip) == continuation(tok, before, ids, skip)


@given(data=st.data(), skip=st.booleans())
@settings(max_examples=some(60, 300), deadline=None)
@pytest.mark.slow
def test_any_byte_level_tokens_equal_full_decode(data: st.DataObject, skip: bool) -> None:
    """Also bytes that are no UTF-8, special and added tokens, and ids outside the vocabulary."""
    tok = v.byte_level()
    ids = data.draw(st.lists(st.integers(0, tok.vocab_size + 3), max_size=25))
    prompt = tok.encode(data.draw(texts))
    assert stream(tok, prompt, ids, skip) == continuation(tok, prompt, ids, skip)


@given(data=st.data())
@settings(max_examples=some(40, 200), deadline=None)
@pytest.mark.slow
def test_any_byte_fallback_tokens_with_valid_runs_equal_full_decode(data: st.DataObject) -> None:
    tok = v.byte_fallback()
    plain = [i for i in range(1, tok.vocab_size) if not tok.token_of(i).startswith("<0x")]
    chunks = st.sampled_from(plain).map(lambda i: [i]) | st.characters(exclude_categories=["Cs"]).map(
        lambda c: [tok.id_of(f"<0x{b:02X}>") for b in c.encode()]
    )
    ids = [i for chunk in data.draw(st.lists(chunks, max_size=20)) for i in chunk]
    prompt = data.draw(st.sampled_from([[tok.bos_id], [], tok.encode("the river")]))
    assert stream(tok, prompt, ids) == continuation(tok, prompt, ids)


def test_invalid_byte_runs_keep_their_valid_characters() -> None:
    tok = v.byte_fallback()
    ids = [tok.id_of(f"<0x{b:02X}>") for b in b"\xe2\x9c\x93\xff"] + [tok.id_of("a")]
    assert stream(tok, tok.encode("the"), ids) == "✓\ufffda"


@given(text=texts.filter(lambda t: "\ufffd" not in t))
@settings(max_examples=some(30, 100), deadline=None)
def test_no_piece_of_valid_text_shows_a_broken_character(text: str) -> None:
    for make in (v.byte_level, v.byte_fallback):
        tok = make()
        d = Detokenizer(tok, tok.encode("."))
        assert not any("\ufffd" in d.push([i]) for i in tok.encode(text, add_special_tokens=False))


def test_emoji_over_four_tokens_appears_whole_and_an_unfinished_one_only_at_the_end() -> None:
    tok = v.byte_fallback()
    ids = [tok.id_of(f"<0x{b:02X}>") for b in "😀".encode()]
    d = Detokenizer(tok, tok.encode("a"))
    assert [d.push([i]) for i in ids] == ["", "", "", "😀"]
    assert [d.push(ids[:3]), d.finish(), d.finish()] == ["", "\ufffd", ""]


def test_output_completes_a_character_the_prompt_began() -> None:
    tok = v.byte_fallback()
    ids = [tok.id_of(f"<0x{b:02X}>") for b in "é".encode()]
    assert stream(tok, [tok.bos_id, ids[0]], ids[1:]) == "é"


def test_added_tokens_without_spaces_between_them() -> None:
    tok = v.word_piece()
    ids = [tok.id_of("<|im_end|>"), tok.id_of("</s>")]
    prompt = tok.encode("the")
    spaced = Detokenizer(tok, prompt, False, True).push(ids)
    joined = Detokenizer(tok, prompt, False, False).push(ids)
    assert (spaced, joined) == (" <|im_end|> </s>", " <|im_end|></s>")


@pytest.mark.parametrize("family", [*STREAMED, "bert"])
def test_marked_tokens_come_as_marks_whatever_is_skipped(family: str) -> None:
    tok = v.word_piece() if family == "bert" else STREAMED[family]()
    special = min(tok.special_ids)
    ids = [*tok.encode("the river", add_special_tokens=False), special, *tok.encode("the river", add_special_tokens=False)]
    d = Detokenizer(tok, tok.encode("a"), marked=[special])
    text = "".join([d.push([i]) for i in ids]) + d.finish()
    before, _, after = text.partition(mark(special))
    assert after
    assert before.split() == after.split()
    assert id_of(mark(special)) == special
