"""Which of a model's named templates a conversation gets: the one that transformers takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import vocabularies as v
from transformers import AutoTokenizer

from thalweg.errors import RequestError
from thalweg.template.chat import Chat
from thalweg.template.select import Templates
from thalweg.text.tokenizer import load_tokenizer

ASK = [{"role": "user", "content": "Hi"}]
TOOLS = [{"type": "function", "function": {"name": "lookup", "description": "d", "parameters": {"type": "object"}}}]
SOURCES = {
    "default": "B:{{ messages[-1].content }}",
    "tool_use": "T:{% for t in tools or [] %}{{ t.function.name }}{% endfor %}",
    "rag": "R:{% for d in documents or [] %}{{ d.text }}{% endfor %}",
}


def saved(path: Path, **sources: str) -> Path:
    v.byte_level().backend.save(str(path / "tokenizer.json"))
    named = [{"name": k, "template": t} for k, t in sources.items()]
    config = {**v.CONFIG, "tokenizer_class": "PreTrainedTokenizerFast", "chat_template": named}
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return path


@pytest.mark.parametrize("names", [("default", "tool_use", "rag"), ("default", "rag"), ("default",), ("tool_use", "rag")])
@pytest.mark.parametrize("tools", [None, TOOLS])
@pytest.mark.parametrize("asked", [None, "default", "tool_use", "rag", "S:{{ messages|length }}"])
@pytest.mark.sampled(2)
def test_a_conversation_gets_the_template_of_transformers(tmp_path, names, tools, asked):
    if asked in SOURCES and asked not in names:
        pytest.skip("no such name")
    path = saved(tmp_path, **{n: SOURCES[n] for n in names})
    tok, theirs = load_tokenizer(path), AutoTokenizer.from_pretrained(path)
    chat = Chat(tok, Templates(tok.chat_templates))
    documents = [{"title": "t", "text": "facts"}]
    try:
        want = theirs.apply_chat_template(ASK, tools=tools, documents=documents, chat_template=asked, tokenize=False)
    except ValueError:
        with pytest.raises(RequestError, match="name one of rag, tool_use"):
            chat.render(ASK, tools, kwargs={"documents": documents}, template=asked)
        return
    finally:
        chat.close()
    try:
        assert chat.render(ASK, tools, kwargs={"documents": documents}, template=asked)[0] == want
        if asked in SOURCES:  # the same by a keyword argument
            assert chat.render(ASK, tools, kwargs={"documents": documents, "chat_template": asked})[0] == want
    finally:
        chat.close()


def test_a_template_of_the_operator_comes_before_the_models_and_a_name_before_both():
    own = Templates(SOURCES).prefer("P:{{ messages|length }}")
    assert own.pick(tools=True) == own.pick(tools=False) == "P:{{ messages|length }}"
    assert own.find("rag", tools=True) == SOURCES["rag"]
    assert Templates(SOURCES).prefer("rag").pick(tools=True) == SOURCES["rag"]


def test_what_is_no_name_of_the_models_is_refused_with_those_that_are():
    for named, words in ((SOURCES, "its templates are default, rag, tool_use"), ({}, "it has no templates")):
        with pytest.raises(ValueError, match=words):
            Templates(named).prefer("rga")
        for name in ("rga", 1, SOURCES["rag"]):
            with pytest.raises(RequestError, match=words) as e:
                Templates(named).read_kwargs(None, {"chat_template": name})
            assert e.value.param == "chat_template_kwargs"


def test_a_missing_template_is_named_with_those_there_are():
    for named, words in (
        ({"tool_use": "T:"}, "this model has chat templates named tool_use and none named 'default'; name one of tool_use"),
        ({}, "this model has no chat template; send one"),
    ):
        with pytest.raises(RequestError, match=words):
            Templates(named).find(None, tools=False)
    assert Templates({"tool_use": "T:"}).find(None, tools=True) == "T:"


def test_only_templates_of_the_model_and_the_operator_are_trusted():
    tok = v.byte_level()
    chat = Chat(tok, Templates(SOURCES, "P:"))
    try:
        assert [chat.trusts(t) for t in (None, *SOURCES)] == [True] * 4
        assert [chat.trusts(t) for t in (SOURCES["rag"], "P:", "rga", "{{ x }}")] == [False] * 4, "it came with a request"
        assert [chat.templates.owns(t) for t in (*SOURCES.values(), "P:", "{{ x }}")] == [True] * 4 + [False]
    finally:
        chat.close()
