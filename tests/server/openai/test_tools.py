"""Tools and reasoning through the official client: whole, streamed, in a loop, and refused in words."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from fake_engine import TEMPLATE, ByteTokenizer
from scripted import CALLS, CHATML, Scripted

from thalweg.text.marks import mark

TOOLS = [
    {"type": "function", "function": {"name": n, "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}
    for n in ("get_weather", "get_time")
]
ASK: list[Any] = [{"role": "user", "content": "weather?"}]


def calls_of(message: Any) -> list[tuple[str, str]]:
    return [(c.function.name, c.function.arguments) for c in message.tool_calls or ()]


def ask(running: Any, **fields: Any) -> Any:
    return running.client().chat.completions.create(**{"model": "fake", "messages": ASK, "tools": TOOLS, **fields})


def test_a_whole_answer(start):
    r = ask(start(Scripted(CALLS))).choices[0]
    assert r.finish_reason == "tool_calls"
    assert r.message.content == "One moment."
    assert r.message.reasoning == r.message.reasoning_content == "Let me <see>."
    assert calls_of(r.message) == [("get_weather", '{"city":"Par\\u00eds"}'), ("get_time", "{}")]
    assert all(c.id and c.type == "function" for c in r.message.tool_calls)


def test_a_streamed_answer_equals_the_whole(start):
    content, reasoning, calls, reasons = "", "", {}, []
    for chunk in ask(start(Scripted(CALLS)), stream=True):
        choice = chunk.choices[0]
        content += choice.delta.content or ""
        reasoning += getattr(choice.delta, "reasoning", None) or ""
        reasons.append(choice.finish_reason)
        for c in choice.delta.tool_calls or ():
            if c.index not in calls:
                assert c.id
                assert c.function.name
                assert c.type == "function"
                calls[c.index] = [c.function.name, ""]
            else:
                assert c.id is None
                assert c.function.name is None
            calls[c.index][1] += c.function.arguments or ""
    assert (content, reasoning) == ("One moment.", "Let me <see>.")
    assert calls == {0: ["get_weather", '{"city":"Par\\u00eds"}'], 1: ["get_time", "{}"]}
    assert reasons[-1] == "tool_calls"
    assert set(reasons[:-1]) == {None}


def test_the_clients_own_accumulator_agrees(start):
    """`chat.completions.stream` of the official client puts the message together and checks every chunk."""
    client = start(Scripted(CALLS)).client()
    with client.chat.completions.stream(model="fake", messages=ASK, tools=TOOLS) as stream:
        done = stream.get_final_completion().choices[0]
    assert done.finish_reason == "tool_calls"
    assert calls_of(done.message) == [("get_weather", '{"city":"Par\\u00eds"}'), ("get_time", "{}")]


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_loop(start, stream):
    running = start(Scripted(CALLS, "<think>\nok\n</think>\n\nIt is 20 degrees."))
    messages = [*ASK]
    first = running.client().chat.completions.create(model="fake", messages=messages, tools=TOOLS).choices[0].message
    messages.append(first)
    for call in first.tool_calls:
        json.loads(call.function.arguments)
        messages.append({"role": "tool", "tool_call_id": call.id, "content": f"result of {call.function.name}"})
    r = running.client().chat.completions.create(model="fake", messages=messages, tools=TOOLS, stream=stream)
    if stream:
        chunks = [c.choices[0] for c in r]
        text, reason = "".join(c.delta.content or "" for c in chunks), chunks[-1].finish_reason
    else:
        text, reason = r.choices[0].message.content, r.choices[0].finish_reason
    assert (text, reason) == ("It is 20 degrees.", "stop")
    prompt = running.engine.prompts[1]["prompt"]
    assert "<assistant>Let me <see>.One moment." in prompt
    assert '"arguments": {"city": "Par' in prompt
    assert "<tool>" in prompt
    assert "result of get_time" in prompt


def test_without_tools_nothing_is_a_call(start):
    running = start(Scripted(*[CALLS] * 3))
    whole = CALLS.split("</think>\n\n")[1]
    for fields in ({"tools": openai.NOT_GIVEN}, {"tool_choice": "none"}, {"tools": []}):
        r = ask(running, **fields).choices[0]
        assert (r.message.content, r.message.tool_calls, r.finish_reason) == (whole, None, "stop")
        assert r.message.reasoning == "Let me <see>."


def test_text_of_a_model_without_reasoning_stays_as_it_is(start):
    r = ask(start(Scripted("<think>a</think>", template=TEMPLATE)), tools=openai.NOT_GIVEN).choices[0]
    assert r.message.content == "<think>a</think>"


def test_reasoning_may_be_left_out(start):
    running = start(Scripted(CALLS, CALLS))
    assert not hasattr(ask(running, extra_body={"include_reasoning": False}).choices[0].message, "reasoning")
    stream = ask(running, stream=True, extra_body={"include_reasoning": False})
    assert not any(getattr(c.choices[0].delta, "reasoning", None) for c in stream)


def test_one_call_where_no_more_are_wanted(start):
    running = start(Scripted(CALLS, CALLS))
    assert len(ask(running, parallel_tool_calls=False).choices[0].message.tool_calls) == 1
    stream = ask(running, parallel_tool_calls=False, stream=True)
    assert {c.index for chunk in stream for c in chunk.choices[0].delta.tool_calls or ()} == {0}


def test_an_answer_that_was_cut_off_ends_with_length(start):
    r = ask(start(Scripted(CALLS[: CALLS.index("\\u00")], reason="length"))).choices[0]
    assert r.finish_reason == "length"
    assert calls_of(r.message) == [("get_weather", '{"city":"Par')]


def test_a_call_that_is_none_is_content(start):
    r = ask(start(Scripted("<tool_call>nonsense</tool_call>"))).choices[0]
    assert (r.message.content, r.finish_reason) == ("<tool_call>nonsense</tool_call>", "stop")
    assert r.message.tool_calls is None


def test_several_choices(start):
    r = ask(start(Scripted(CALLS)), n=2)
    assert [len(c.message.tool_calls) for c in r.choices] == [2, 2]
    ids = {c.id for choice in r.choices for c in choice.message.tool_calls}
    assert len(ids) == 4


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_time"}}])
def test_a_forced_call_constrains_the_turn(start, choice):
    engine = Scripted('<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>')
    r = ask(start(engine), tool_choice=choice).choices[0]
    assert calls_of(r.message) == [("get_time", "{}")]
    assert r.finish_reason == ("tool_calls" if choice == "required" else "stop")
    asked = engine.params[0].structured_outputs
    assert asked.asked_as == "tool_choice"
    assert ('"const": "get_weather"' in asked.grammar) == (choice == "required")


def test_schemas_of_a_forced_call_are_named_by_their_fields(start):
    engine = Scripted(*['<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'] * 3)
    running = start(engine)
    ask(running, tool_choice="required")
    ask(running, tool_choice={"type": "function", "function": {"name": "get_weather"}})
    ask(running, tools=[{"type": "web_search"}, *TOOLS], tool_choice="required")
    first, named, moved = ([(p.field, p.name) for p in e.structured_outputs.parts] for e in engine.params)
    assert first[0] == ("tools[0].function.parameters",) * 2
    assert named == [("tools[0].function.parameters",) * 2]
    assert moved[0] == ("tools", "tools: parameters of 'get_weather'"), "a tool before it was left out: its place is not known"


FORM = {"type": "json_object"}


@pytest.mark.parametrize("fields", [{"response_format": FORM}, {"extra_body": {"structured_outputs": {"regex": "a"}}}])
def test_a_call_that_must_be_made_goes_before_the_form_of_content(start, fields):
    engine = Scripted(CALLS[CALLS.index("<tool_call>") :])
    r = ask(start(engine), tool_choice="required", **fields).choices[0]
    assert (len(r.message.tool_calls), r.message.content) == (2, None)
    held = engine.params[0].structured_outputs
    assert (held.asked_as, held.inner, "@inner" in held.grammar) == ("tool_choice", None, False)


@pytest.mark.parametrize("stream", [False, True])
def test_tools_beside_a_form_leave_the_choice_to_the_model(start, stream):
    """OpenAI's API: the answer is calls, or content of the form."""
    content = '{"a": "<think> and <tool_call>\\n{"}'
    engine = Scripted("<think>\nHm <tool_call>.\n</think>\n\n" + CALLS[CALLS.index("<tool_call>") :], content)
    running = start(engine)
    said = []
    for _ in range(2):
        if not stream:
            choice = ask(running, response_format=FORM).choices[0]
            said.append((choice.message.content, len(choice.message.tool_calls or ()), choice.finish_reason))
            continue
        chunks = [c.choices[0] for c in ask(running, response_format=FORM, stream=True) if c.choices]
        calls = {c.index for chunk in chunks for c in chunk.delta.tool_calls or ()}
        said.append(("".join(c.delta.content or "" for c in chunks) or None, len(calls), chunks[-1].finish_reason))
    assert said == [(None, 2, "tool_calls"), (content, 0, "stop")]
    held = engine.params[0].structured_outputs
    assert held.inner.asked_as == "response_format"
    assert '"const": "get_weather"' in held.grammar


def test_content_of_a_form_is_content_whatever_marks_it_holds(start):
    content = '{"a": "wrap it in <think> tags</think>, then <tool_call>"}'
    r = ask(start(Scripted(content)), tools=openai.NOT_GIVEN, response_format=FORM).choices[0].message
    assert (r.content, getattr(r, "reasoning", None)) == (content, None)


def test_reasoning_that_ends_in_text_comes_before_the_form(start):
    """The tokenizer has no token that ends reasoning."""
    engine = Scripted('Hm.\n</think>\n\n{"a": "</think>"}', template=CHATML + "<think>")
    r = ask(start(engine), tools=openai.NOT_GIVEN, response_format=FORM).choices[0].message
    assert (r.reasoning, r.content) == ("Hm.", '{"a": "</think>"}')
    held = engine.params[0].structured_outputs
    assert (held.free_until, held.inner.json_object) == (None, True)


def test_a_stop_string_counts_after_the_reasoning(start):
    engine = Scripted(CALLS, CALLS)
    running = start(engine)
    ask(running, stop=["see"])
    ask(running)
    aside = engine.params[0].stop_aside
    assert (aside.opens, aside.close, aside.inside) == (["<think>"], "</think>", False)
    assert engine.params[1].stop_aside is None


@pytest.mark.parametrize("said", ["", ', "argu', ', "arguments": ', ', "arguments": nu'])
def test_a_call_cut_off_after_its_name_has_no_arguments(start, said):
    running = start(Scripted('<tool_call>\n{"name": "get_time"' + said, reason="length"))
    assert calls_of(ask(running).choices[0].message) == [("get_time", "")]


@pytest.mark.parametrize("nothing", ["null", '""', '"null"', "{}"])
def test_arguments_that_are_nothing_are_an_empty_object(start, nothing):
    running = start(Scripted('<tool_call>\n{"name": "get_time", "arguments": ' + nothing + "}\n</tool_call>"))
    assert calls_of(ask(running).choices[0].message) == [("get_time", "{}")]


def test_a_choice_of_no_tool_is_refused(start):
    running = start(Scripted())
    with pytest.raises(openai.BadRequestError, match="no function 'other'"):
        ask(running, tool_choice={"type": "function", "function": {"name": "other"}})
    with pytest.raises(openai.BadRequestError, match="must be unique"):
        ask(running, tools=[TOOLS[0], TOOLS[0]])


def test_a_model_of_no_known_format_is_refused_tools(start):
    with pytest.raises(openai.BadRequestError, match="--tool-call-parser") as e:
        ask(start(Scripted(template=TEMPLATE)))
    assert e.value.param == "tools"


def test_a_flag_names_the_format(start):
    running = start(Scripted(CALLS, template=TEMPLATE), tool_call_parser="hermes", reasoning_parser="none")
    r = ask(running).choices[0].message
    assert len(r.tool_calls) == 2
    assert r.content.startswith("<think>\nLet me")


def test_auto_may_be_switched_off(start):
    with pytest.raises(openai.BadRequestError, match="--no-enable-auto-tool-choice"):
        ask(start(Scripted(), enable_auto_tool_choice=False))


def test_tools_that_are_no_functions_are_dropped_and_told(start):
    running = start(Scripted(CALLS))
    body = {"messages": ASK, "tools": [*TOOLS, {"type": "web_search"}], "context_management": {}}
    r = running.post("/v1/chat/completions", body)
    assert r.status_code == 200
    assert r.headers["x-ignored-fields"] == "context_management, tools[].web_search"
    assert len(r.json()["choices"][0]["message"]["tool_calls"]) == 2


def test_tokens_count_where_letters_do_not(start):
    """`<tool_call>` is a token here: letters that spell it are content."""
    engine = Scripted("So <tool_call> it is" + mark(9) + '{"name": "get_time", "arguments": {}}')
    engine.tokenizer = ByteTokenizer()
    engine.tokenizer.added_tokens = {9: "<tool_call>"}
    r = ask(start(engine)).choices[0].message
    assert engine.params[0].marked_token_ids == [9]
    assert r.content == "So <tool_call> it is"
    assert calls_of(r) == [("get_time", "{}")]


def strict(*names: str) -> list[dict[str, Any]]:
    return [{**t, "function": {**t["function"], "strict": t["function"]["name"] in names}} for t in TOOLS]


def test_a_strict_tool_is_held_to_its_schema_from_where_a_call_begins(start):
    engine = Scripted("So." + mark(9) + '{"name": "get_time", "arguments": {}}')
    engine.tokenizer = ByteTokenizer()
    engine.tokenizer.added_tokens = {9: "<tool_call>"}
    r = ask(start(engine), tools=strict("get_weather")).choices[0]
    assert r.finish_reason == "tool_calls"
    held = engine.params[0].structured_outputs
    assert (held.free_until, held.asked_as) == ([9], "tools")
    assert held.grammar.count('"city"') == 1, "the other takes any object"
    assert {'"const": "get_weather"' in held.grammar, '"const": "get_time"' in held.grammar} == {True}


def test_a_strict_tool_is_held_where_no_token_begins_a_call(start):
    engine = Scripted('So.\n<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>')
    r = ask(start(engine), tools=strict("get_time")).choices[0]
    assert (r.message.content, calls_of(r.message)) == ("So.", [("get_time", "{}")])
    held = engine.params[0].structured_outputs
    assert (held.free_until, held.asked_as, '"const": "get_time"' in held.grammar) == (None, "tools", True)


@pytest.mark.parametrize(("level", "schemas"), [("function", 0), ("parameter", 1)])
def test_a_server_may_hold_the_calls_of_every_tool(start, level, schemas):
    engine = Scripted("So." + mark(9) + '{"name": "get_time", "arguments": {}}')
    engine.tokenizer = ByteTokenizer()
    engine.tokenizer.added_tokens = {9: "<tool_call>"}
    assert ask(start(engine, tool_strict_level=level), tools=strict()).choices[0].finish_reason == "tool_calls"
    held = engine.params[0].structured_outputs
    assert (held.free_until, held.grammar.count('"city"') > 0) == ([9], bool(schemas))
    assert '"const": "get_weather"' in held.grammar


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": strict()},
        {"tools": strict("get_time"), "tool_choice": "none"},
    ],
)
def test_nothing_else_is_held_beside_strict_tools(start, fields):
    engine = Scripted(CALLS)
    engine.tokenizer = ByteTokenizer()
    engine.tokenizer.added_tokens = {9: "<tool_call>"}
    ask(start(engine), **fields)
    held = engine.params[0].structured_outputs
    assert held is None or held.grammar is None
