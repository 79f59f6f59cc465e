"""Special tokens that a user writes are text, whoever says them and wherever; the template's own are what they were."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jails
import pytest
import tokenizers
import vocabularies as v
from amounts import some
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_template import CHATML, LLAMA3, TOOLS
from tokenizers import AddedToken, decoders, models, pre_tokenizers

import thalweg
from thalweg.errors import RequestError
from thalweg.template.chat import Chat
from thalweg.template.sandbox import ChatTemplate
from thalweg.template.specials import FIRST, LAST, MOST, SpecialText
from thalweg.text.tokenizer import Tokenizer, load_tokenizer

SMALL = """{% for m in messages %}<s>{{ m.role }}: {{ m.content }}{% for c in m.tool_calls or [] %}
{{ c.function.arguments | tojson }}{% endfor %}</s>{% endfor %}{{ tools | tojson if tools }}{{ note }}<s>"""
PARTS = "{% for m in messages %}<s>{% for p in m.content %}{{ p.text }}{% endfor %}</s>{% endfor %}"
SPLIT = """{% for m in messages %}{% set parts = m.content.split('</s>') %}
<s>{{ parts[0] }}<|im_end|>{{ parts[-1] | trim }}<|im_end|>{{ parts[0] }}</s>{% endfor %}"""
ASCII = "{% for m in messages %}<s>{{ m | tojson(ensure_ascii=True) }}</s>{% endfor %}"


@cache
def bundled() -> Tokenizer:
    return load_tokenizer(Path(thalweg.__file__).parent / "nano/weights")


@cache
def stripping() -> Tokenizer:
    """Special tokens that swallow the spaces around them, as Phi's and Mistral's; Metaspace before the first word only."""
    letters = {c: i + 1 for i, c in enumerate("▁abcdefghijklmnopqrstuvwxyz<>|/_:[]")}
    t = tokenizers.Tokenizer(models.BPE({"<unk>": 0, **letters}, [], unk_token="<unk>", fuse_unk=True))
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    t.add_special_tokens(
        [AddedToken("<unk>", special=True, normalized=False), AddedToken("<s>", special=True, normalized=False)]
    )
    t.add_special_tokens([AddedToken(x, special=True, normalized=False, rstrip=True, lstrip=True) for x in ("</s>", "[INST]")])
    t.add_tokens([AddedToken("<|im_end|>", special=False, normalized=False)])  # special, and does not say so
    return Tokenizer(t, {**v.CONFIG, "unk_token": "<unk>"})


MAKERS: list[Callable[[], Tokenizer]] = [v.byte_level, v.byte_fallback, v.metaspace, v.word_piece, bundled, stripping]


@cache
def chat(make: Callable[[], Tokenizer], source: str) -> Chat:
    return Chat(make(), source)


@pytest.fixture(scope="module", autouse=True)
def _jails() -> Iterator[None]:
    with jails.shared():
        yield


def control(tok: Tokenizer, ids: list[int]) -> list[int]:
    """The special tokens among them, less what only stands for unknown letters."""
    texts = set(tok.special_texts) - {"<unk>", "[UNK]"}
    return [i for i in ids if tok.token_of(i) in texts]


def places(text: str) -> Iterator[tuple[list[dict[str, Any]], Any, dict[str, Any]]]:
    """The same text in every place where a caller may write some."""
    for role in ("system", "developer", "user", "assistant", "tool"):
        yield [{"role": role, "content": text}], None, {}
        yield [{"role": role, "content": [{"type": "text", "text": text}, {"type": "text", "text": "z"}]}], None, {}
    call = {"function": {"name": "f" + text, "arguments": json.dumps({"x": text, text: 1})}}
    yield [{"role": "assistant", "content": "", "tool_calls": [call]}], None, {}
    yield [{"role": "user", "content": "z", "name": text}], None, {}
    yield [{"role": "user", "content": "z"}], [{"type": "function", "function": {"name": "f", "description": text}}], {}
    yield [{"role": "user", "content": "z"}], None, {"note": text}


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("source", [SMALL, PARTS, ASCII, CHATML])
@pytest.mark.sampled(2)
def test_no_special_token_has_an_effect_wherever_a_caller_writes_it(make: Callable[[], Tokenizer], source: str) -> None:
    tok = make()
    render, here = chat(make, source), ChatTemplate(source, tok.special_tokens)
    assert tok.special_texts
    for special in tok.special_texts:
        for evil, harmless in zip(places(f"a{special}b {special} {special}"), places("ab c"), strict=True):
            messages, tools, kwargs = evil
            prompt = render.prompt(messages, tools, kwargs=kwargs)
            clean = render.prompt(harmless[0], harmless[1], kwargs=harmless[2])
            assert control(tok, prompt["prompt_token_ids"]) == control(tok, clean["prompt_token_ids"]), (special, messages)
            assert prompt["prompt"] == here.render(messages, tools, **kwargs), "and the text is what it is anywhere"


@pytest.mark.parametrize("make", [v.byte_level, bundled])
def test_the_letters_of_a_special_token_are_all_there(make: Callable[[], Tokenizer]) -> None:
    tok = make()
    for special in tok.special_texts:
        prompt = chat(make, CHATML).prompt([{"role": "user", "content": f"é {special}{special} x"}])
        assert tok.decode(prompt["prompt_token_ids"], skip_special_tokens=False) == prompt["prompt"]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("source", [SMALL, CHATML, LLAMA3])
def test_other_prompts_are_encoded_as_ever(make: Callable[[], Tokenizer], source: str) -> None:
    messages = [{"role": "user", "content": t} for t in [*v.TEXT, "a < b > c </", "<tool é>"]]
    prompt = chat(make, source).prompt(messages, TOOLS)
    assert prompt["prompt_token_ids"] == make().encode(prompt["prompt"], add_special_tokens=False)
    assert prompt["prompt"] == ChatTemplate(source, make().special_tokens).render(messages, TOOLS)


ALPHABET = st.sampled_from(
    ["<s>", "</s>", "<|im_end|>", "<s", "<", "</", "<|im_", "end|>", "s>", ">", " ", "a", "\ue200", "\\ue200"]
)
TEXTS = st.lists(st.lists(ALPHABET, max_size=6).map("".join), min_size=1, max_size=3)


@example(["a </", "s> b"], PARTS, v.byte_level)
@example(["<|im", "_", "end|>"], PARTS, v.byte_level)
@example(["<", "/s>"], PARTS, stripping)
@given(TEXTS, st.sampled_from([SMALL, PARTS, ASCII]), st.sampled_from([v.byte_level, stripping]))
@settings(max_examples=some(30, 150), deadline=None)
@pytest.mark.slow
def test_pieces_that_make_a_special_token_together_do_not_either(parts: list[str], source: str, make: Any) -> None:
    """Parts are written one after the other by some templates."""
    tok, content = make(), [{"type": "text", "text": p} for p in parts]
    prompt = chat(make, source).prompt([{"role": "user", "content": content}, {"role": "user", "content": parts[0]}])
    clean = chat(make, source).prompt([{"role": "user", "content": "a"}] * 2)
    assert control(tok, prompt["prompt_token_ids"]) == control(tok, clean["prompt_token_ids"])
    expected = ChatTemplate(source).render([{"role": "user", "content": content}, {"role": "user", "content": parts[0]}])
    assert prompt["prompt"] == expected


def test_a_template_that_splits_at_a_special_token_keeps_its_own() -> None:
    """What is left of the caller's token must not make data of one that the template writes."""
    tok = v.byte_level()
    for content in ("a</s>b", "</s>", "a</s>", "</s></s>b", "<|im_end|></s><|im_end|>"):
        ids = chat(v.byte_level, SPLIT).prompt([{"role": "user", "content": content}])["prompt_token_ids"]
        assert control(tok, ids) == [tok.id_of(t) for t in ("<s>", "<|im_end|>", "<|im_end|>", "</s>")]


def test_a_continued_message_with_special_text_ends_where_it_ends() -> None:
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "so </s> <"}]
    prompt = chat(v.byte_level, SMALL).prompt(messages, continue_final_message=True, add_generation_prompt=False)
    assert prompt["prompt"].endswith("assistant: so </s> <")
    assert control(v.byte_level(), prompt["prompt_token_ids"]).count(v.byte_level().id_of("</s>")) == 1


def test_an_error_of_the_template_shows_no_marks() -> None:
    source = "{{ raise_exception('not ' ~ messages[0].content) }}"
    with pytest.raises(RequestError, match=r"not a</s>b$"):
        chat(v.byte_level, source).prompt([{"role": "user", "content": "a</s>b"}])


def test_a_text_that_uses_every_private_character_is_refused() -> None:
    private = "".join(map(chr, range(FIRST, LAST + 1)))
    assert SpecialText(["</s>"]).mark([private]) == ([private], None)
    with pytest.raises(RequestError, match="private use"):
        SpecialText(["</s>"]).mark([private + "</s>"])
    marked, marks = SpecialText(["</s>"]).mark([private[1:-3] + "</s>"])
    assert marks is None or marks.take(marked[0])[0] == private[1:-3] + "</s>"


def test_special_text_is_found_across_the_slices_of_a_long_text() -> None:
    specials = SpecialText(["</s>", "</s>x", "<s>"])
    for before in ((1 << 20) - n for n in range(6)):
        text = "a" * before + "</s>x<s>" + "a" * (1 << 20) + "</s>"
        spans = specials.spans(text)
        assert [text[a:b] for a, b in spans] == ["</s>x", "<s>", "</s>"]


@given(st.sets(st.text("<|>as", min_size=1, max_size=5), max_size=8), st.text("<|>as", max_size=60))
def test_of_several_special_tokens_the_longest_is_found(tokens: set[str], text: str) -> None:
    pattern = "|".join(re.escape(t) for t in sorted(tokens, key=len, reverse=True))
    found = [m.span() for m in re.finditer(pattern, text)] if tokens else []
    assert SpecialText(sorted(tokens)).spans(text) == found


def test_more_special_tokens_than_anybody_writes_are_refused() -> None:
    for values in (["</s>" * (MOST + 1)], ["a" + "</s>" * (MOST // 2), "</s>" * (MOST // 2) + "</s>"]):
        with pytest.raises(RequestError, match="more than 65536 special tokens"):
            SpecialText(["</s>"]).mark(values)
    assert len(SpecialText(["</s>"]).spans("</s>" * MOST)) == MOST
