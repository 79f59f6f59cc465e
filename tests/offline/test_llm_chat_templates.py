"""`LLM.chat` and a model's named chat templates."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import thalweg
from thalweg import LLM
from thalweg.errors import RequestError

NANO = Path(thalweg.__file__).parent / "nano" / "weights"
NAMED = {
    "default": "B:{{ messages[-1].content }}",
    "tool_use": "T:{% for t in tools %}{{ t.function.name }}{% endfor %}",
    "rag": "R:{% for d in documents or [] %}{{ d }}{% endfor %}",
}
ASK = [{"role": "user", "content": "Hi"}]
TOOLS = [{"type": "function", "function": {"name": "lookup", "parameters": {"type": "object"}}}]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("named")
    shutil.copytree(NANO, path, dirs_exist_ok=True)
    (path / "chat_template.jinja").unlink()
    file = path / "tokenizer_config.json"
    listed = [{"name": name, "template": source} for name, source in NAMED.items()]
    file.write_text(json.dumps({**json.loads(file.read_text()), "chat_template": listed}))
    return str(path)


def made(model: str, **args: object) -> LLM:
    return LLM(model, device="null", max_model_len=64, **args)


def texts(llm: LLM, **fields: object) -> list[str]:
    return [p["prompt"] for p in llm.preprocess_chat(ASK, **fields)]


def test_tools_choose_tool_use_and_names_the_others(model):
    llm = made(model)
    try:
        assert texts(llm) == ["B:Hi"]
        assert texts(llm, tools=TOOLS) == ["T:lookup"]
        facts = {"documents": ["x"]}
        assert texts(llm, chat_template="rag", chat_template_kwargs=facts, tools=TOOLS) == ["R:x"]
        assert texts(llm, chat_template_kwargs={"chat_template": "rag", **facts}) == ["R:x"]
        assert texts(llm, chat_template="S:{{ messages|length }}") == ["S:1"]
        (out,) = llm.chat(ASK, tools=TOOLS, use_tqdm=False)
        assert out.prompt == "T:lookup"
    finally:
        llm.shutdown()


def test_a_template_for_the_whole_llm_may_be_a_name_and_gives_way_to_one_that_is_asked_for(model, tmp_path):
    llm = made(model, chat_template="rag")
    try:
        assert texts(llm, tools=TOOLS) == ["R:"]
        assert texts(llm, chat_template_kwargs={"chat_template": "default"}) == ["B:Hi"]
        (tmp_path / "own.jinja").write_text("F:{{ messages|length }}")
        assert texts(llm, chat_template=str(tmp_path / "own.jinja")) == ["F:1"]
    finally:
        llm.shutdown()


def test_what_is_no_template_no_file_and_no_name_is_refused_with_the_names(model):
    """It was rendered as text: every conversation was the name of a file that is not there."""
    with pytest.raises(RequestError, match=r"'missing\.jinja' is neither .* default, rag, tool_use") as e:
        made(model, chat_template="missing.jinja")
    assert e.value.param == "chat_template"
    llm = made(model)
    try:
        for asked in ({"chat_template": "rga"}, {"chat_template_kwargs": {"chat_template": "rga"}}):
            with pytest.raises(RequestError, match="default, rag, tool_use"):
                llm.chat(ASK, use_tqdm=False, **asked)
    finally:
        llm.shutdown()
