"""LLM.chat's answers with reasoning and tool calls taken out."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from thalweg import LLM, SamplingParams
from thalweg.engine.client.chat_turns import ChatTurns
from thalweg.errors import ConfigError
from thalweg.outputs import CompletionOutput, RequestOutput
from thalweg.params import StructuredOutputsParams
from thalweg.template.select import Templates
from thalweg.text.marks import mark

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


class Vocabulary:
    added_tokens = {5: "<tool_call>", 6: "</tool_call>", 7: "<think>"}
    special_ids = frozenset({5, 6})
    response_template = None


def frontend(template: str = '<tool_call></tool_call>"arguments":<think>') -> Any:
    chat = SimpleNamespace(templates=Templates(fixed=template), writer=lambda template: None)
    return SimpleNamespace(tokenizer=Vocabulary(), chat=chat)


def answered(turns: ChatTurns, text: str, **fields: Any) -> CompletionOutput:
    output = RequestOutput("1", "prompt", [1], None, [CompletionOutput(0, text, [1])], True)
    turns.read(output, SamplingParams(**fields))
    return output.outputs[0]


def test_calls_and_reasoning_are_taken_out_and_the_text_stays():
    turns = ChatTurns(frontend(), None, TOOLS, None, None)
    assert turns.marking(SamplingParams()).marked_token_ids == [5, 6, 7]
    text = f'{mark(7)}hm</think>Yes {mark(5)}{{"name": "f", "arguments": {{"a": 1}}}}{mark(6)}'
    choice = answered(turns, text)
    assert (choice.content, choice.reasoning) == ("Yes", "hm")
    assert [(c.name, c.arguments) for c in choice.tool_calls or ()] == [("f", '{"a": 1}')]
    assert choice.text == '<think>hm</think>Yes {"name": "f", "arguments": {"a": 1}}'
    assert answered(turns, text, skip_special_tokens=False).text.endswith("}}</tool_call>")


def test_without_tools_nothing_is_a_call():
    choice = answered(ChatTurns(frontend(), None, None, None, None), "<think>")
    assert (choice.content, choice.reasoning, choice.tool_calls) == ("<think>", None, None)


def test_an_unknown_parser_is_refused():
    with pytest.raises(ConfigError, match="--tool-call-parser"):
        ChatTurns(frontend(), None, TOOLS, "nothing", None)


def test_the_bundled_model_calls_a_tool():
    weather = {
        "name": "get_weather",
        "description": "Get the weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    }
    llm = LLM(max_model_len=512)
    try:
        (out,) = llm.chat(
            [{"role": "user", "content": "What is the weather in Paris?"}],
            SamplingParams(max_tokens=60, temperature=0),
            tools=[{"type": "function", "function": weather}],
            use_tqdm=False,
        )
    finally:
        llm.shutdown()
    choice = out.outputs[0]
    assert [(c.name, json.loads(c.arguments)) for c in choice.tool_calls or ()] == [("get_weather", {"city": "Paris"})]
    assert choice.content == ""
    assert choice.text.startswith("<tool_call>")


def test_content_of_a_form_is_content_whatever_marks_it_holds():
    turns = ChatTurns(frontend(), None, TOOLS, None, None)
    text = f'{{"a": "{mark(7)} and {mark(5)}"}}'
    form = StructuredOutputsParams(json_object=True)
    choice = answered(turns, text, structured_outputs=form)
    assert (choice.content, choice.reasoning, choice.tool_calls) == ('{"a": "<think> and <tool_call>"}', None, [])


def test_stop_strings_do_not_count_in_reasoning():
    turns = ChatTurns(frontend(), None, TOOLS, None, None)
    aside = turns.marking(SamplingParams(stop=["x"]), "user: hi").stop_aside
    assert aside is not None
    assert (aside.opens, aside.close, aside.inside) == ([mark(7)], "</think>", False)
    inside = turns.marking(SamplingParams(stop=["x"]), "user: hi<think>\n").stop_aside
    assert inside is not None
    assert inside.inside
    assert turns.marking(SamplingParams(), "user: hi").stop_aside is None
    assert turns.marking(SamplingParams(stop=["x"]), "user: hi<think>\n\n</think>").stop_aside is None
