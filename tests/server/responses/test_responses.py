"""The Responses API through the official client: whole, streamed, in a tool loop, kept, and refused in words."""

from __future__ import annotations

import json
from typing import Any, get_args

import openai
import pydantic
import pytest
from fake_engine import TEMPLATE, ByteTokenizer, FakeEngine
from openai.types.responses import Response, ResponseStreamEvent
from scripted import CALLS, Scripted

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS: list[Any] = [
    {"type": "function", "name": n, "description": f"says {n}", "parameters": PARAMETERS, "strict": False}
    for n in ("get_weather", "get_time")
]
SAID = [
    ("reasoning", "Let me <see>."),
    ("message", "One moment."),
    ("get_weather", '{"city":"Par\\u00eds"}'),
    ("get_time", "{}"),
]
EVENTS = {get_args(c.model_fields["type"].annotation)[0]: c for c in get_args(get_args(ResponseStreamEvent)[0])}
"""The client's own types of events, by name."""


def ask(running: Any, **fields: Any) -> Response:
    return running.client().responses.create(**{"model": "fake", "input": "weather?", **fields})


def said(response: Response) -> list[tuple[str, str]]:
    found = []
    for item in response.output:
        match item.type:
            case "function_call":
                found.append((item.name, item.arguments))
            case "custom_tool_call":
                found.append((item.name, item.input))
            case kind:
                found.append((kind, "".join(p.text for p in item.content)))
    return found


def raw(running: Any, **fields: Any) -> list[dict[str, Any]]:
    """The events of a stream, each as the client's types have it."""
    body = {"model": "fake", "input": "weather?", "stream": True, **fields}
    return frames(running.post("/v1/responses", body).text)


def frames(text: str) -> list[dict[str, Any]]:
    pairs = [f.split("\n") for f in text.split("\n\n") if f]
    bodies = [json.loads(b.removeprefix("data: ")) for _, b in pairs]
    assert [a.removeprefix("event: ") for a, _ in pairs] == [b["type"] for b in bodies]
    for body in bodies:
        EVENTS[body["type"]].model_validate(body)
    return bodies


def put_together(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Items from added, deltas and done alone, each checked against the others."""
    items: list[dict[str, Any]] = []
    pieces: list[str] = []
    opened = False
    for e in events:
        kind = e["type"].removeprefix("response.")
        if kind in ("created", "queued", "in_progress", "completed", "incomplete"):
            continue
        if kind == "output_item.added":
            assert not opened
            items.append(e["item"])
            pieces, opened = [], True
            assert e["item"]["status"] == "in_progress"
        assert e["output_index"] == len(items) - 1
        if kind.endswith(".delta"):
            pieces.append(e["delta"])
        if kind in ("output_text.done", "reasoning_text.done"):
            assert e["text"] == "".join(pieces)
        if kind in ("function_call_arguments.done", "custom_tool_call_input.done"):
            assert e.get("arguments", e.get("input")) == "".join(pieces)
        if kind == "output_item.done":
            assert e["item"]["id"] == items[-1]["id"]
            items[-1], opened = e["item"], False
        elif kind != "output_item.added":
            assert e["item_id"] == items[-1]["id"]
    assert not opened
    return items


def test_a_whole_answer(start):
    r = ask(start(Scripted(CALLS)), tools=TOOLS, metadata={"a": "b"}, user="u", temperature=0.5, instructions="be brief")
    assert said(r) == SAID
    Response.model_validate(r.model_dump(), strict=False)
    assert (r.object, r.status, r.model, r.error, r.incomplete_details) == ("response", "completed", "fake", None, None)
    assert r.id.startswith("resp_")
    assert len({i.id for i in r.output}) == 4
    assert len({i.call_id for i in r.output[2:]}) == 2
    assert all(i.status == "completed" for i in r.output)
    assert (r.metadata, r.user, r.temperature, r.instructions, r.store) == ({"a": "b"}, "u", 0.5, "be brief", True)
    assert [t.name for t in r.tools] == ["get_weather", "get_time"]
    assert r.usage.output_tokens == len(CALLS)
    assert r.usage.total_tokens == r.usage.input_tokens + len(CALLS)
    assert r.usage.output_tokens_details.reasoning_tokens == len("Let me <see>.")
    assert r.output_text == "One moment."


def test_a_stream_is_whole_and_dense(start):
    running = start(Scripted(CALLS, CALLS))
    whole = ask(running, tools=TOOLS)
    events = raw(running, tools=TOOLS)
    assert [e["sequence_number"] for e in events] == list(range(len(events)))
    assert [e["type"] for e in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1]["type"] == "response.completed"
    final = events[-1]["response"]
    assert put_together(events) == final["output"]
    assert {events[0]["response"]["id"], final["id"]} == {final["id"]}
    assert said(Response.model_validate(final)) == said(whole) == SAID
    assert final["usage"] == whole.usage.model_dump(exclude_unset=True)


def test_the_clients_own_accumulator(start):
    with start(Scripted(CALLS)).client().responses.stream(model="fake", input="weather?", tools=TOOLS) as stream:
        names = [e.type for e in stream]
        final = stream.get_final_response()
    assert said(final) == SAID
    assert names.count("response.output_item.done") == 4


@pytest.mark.parametrize("stream", [False, True])
def test_max_output_tokens_leave_it_incomplete(start, stream):
    running = start(Scripted("<think>\nok\n</think>\n\nIt is", reason="length"))
    if stream:
        last = raw(running, max_output_tokens=9)[-1]
        assert last["type"] == "response.incomplete"
        r = Response.model_validate(last["response"])
    else:
        r = ask(running, max_output_tokens=9)
    assert (r.status, r.incomplete_details.reason, r.max_output_tokens) == ("incomplete", "max_output_tokens", 9)
    assert [i.status for i in r.output] == ["completed", "incomplete"]
    assert running.engine.params[0].max_tokens == 9


def test_what_is_ended_from_elsewhere_is_incomplete(start):
    r = ask(start(Scripted("It is", reason="abort")))
    assert (r.status, r.incomplete_details.reason, r.output_text) == ("incomplete", None, "It is")


def test_a_tool_loop_by_items(start):
    running = start(Scripted(CALLS, "<think>\nok\n</think>\n\nIt is 20 degrees."))
    first = ask(running, tools=TOOLS, store=False)
    results: list[Any] = [
        {"type": "function_call_output", "call_id": first.output[2].call_id, "output": "20 degrees"},
        {
            "type": "function_call_output",
            "call_id": first.output[3].call_id,
            "output": [{"type": "input_text", "text": "noon"}],
        },
    ]
    history = [{"role": "user", "content": "weather?"}, *(i.model_dump(exclude_none=True) for i in first.output), *results]
    r = ask(running, input=history, tools=TOOLS)
    assert said(r) == [("reasoning", "ok"), ("message", "It is 20 degrees.")]
    prompt = running.engine.prompts[1]["prompt"]
    assert "<user>weather?" in prompt
    assert "<assistant>Let me <see>.One moment." in prompt
    assert '"name": "get_weather"' in prompt
    assert prompt.count("<assistant>") == 2, "reasoning, text and calls are one message"
    assert prompt.index("<tool>20 degrees") < prompt.index("<tool>noon")


@pytest.mark.parametrize("type", [{"type": "item_reference"}, {}], ids=["typed", "untyped"])
def test_items_of_kept_responses_may_be_named_instead_of_sent(start, type):
    """As the `ai` SDK sends what the assistant said. The prompt is the one that the items themselves make."""
    running = start(Scripted(CALLS, "Hot.", "Hot."))
    first = ask(running, tools=TOOLS)
    outputs = [{"type": "function_call_output", "call_id": i.call_id, "output": "20"} for i in first.output[2:]]
    user = {"role": "user", "content": "weather?"}
    whole = ask(running, input=[user, *(i.model_dump(exclude_none=True) for i in first.output), *outputs], tools=TOOLS)
    named = ask(running, input=[user, *({"id": i.id, **type} for i in first.output), *outputs], tools=TOOLS)
    sent, referenced = (p["prompt"] for p in running.engine.prompts[1:])
    assert referenced == sent
    assert "Let me <see>." in sent
    assert len({i.id for r in (first, whole, named) for i in r.output}) == len(first.output) + 2, "ids differ"
    running.client().responses.delete(first.id)
    kept = running.client().responses.input_items.list(named.id, order="asc", limit=100).data
    assert [i.id for i in kept[1:-2]] == [i.id for i in first.output], "listed as items, and kept with what named them"


def test_references_to_what_is_not_kept_are_refused(start):
    running = start(Scripted(CALLS, CALLS, "x"), api_key=["a", "b"])
    a, b = running.client("a"), running.client("b")
    kept = a.responses.create(model="fake", input="secret", tools=TOOLS).output[0].id
    unkept = a.responses.create(model="fake", input="secret", tools=TOOLS, store=False).output[0].id
    for client, id in ((b, kept), (a, unkept), (a, kept[:-2] + "ff"), (a, "msg_1"), (a, "x")):
        with pytest.raises(openai.NotFoundError, match="store=true") as e:
            client.responses.create(model="fake", input=[{"type": "item_reference", "id": id}])
        assert e.value.body["param"] == "input[0].id"
    twice: list[Any] = [{"type": "item_reference", "id": kept}] * 2
    with pytest.raises(openai.BadRequestError, match="twice"):
        a.responses.create(model="fake", input=twice)
    a.responses.create(model="fake", input=[*twice[:1], {"role": "user", "content": "go on"}])


def test_previous_responses_bring_all_turns_back(start):
    running = start(Scripted(CALLS, "<think>\nok\n</think>\n\nIt is 20 degrees.", "Bye."))
    first = ask(running, tools=TOOLS, instructions="be brief")
    outputs: list[Any] = [
        {"type": "function_call_output", "call_id": i.call_id, "output": f"<{i.name}>"} for i in first.output[2:]
    ]
    second = ask(running, input=outputs, previous_response_id=first.id, tools=TOOLS)
    third = ask(running, input="thanks", previous_response_id=second.id)
    assert third.previous_response_id == second.id
    before, prompt = (p["prompt"] for p in running.engine.prompts[1:])
    assert prompt.startswith(before), "what was said stays as it is, for the prefix cache"
    for piece in (
        "<user>weather?",
        '"get_time"',
        "<tool><get_weather>",
        "<tool><get_time>",
        "It is 20 degrees.",
        "<user>thanks",
    ):
        assert piece in prompt
    assert "be brief" not in prompt, "instructions hold for their own response"


def test_roles_and_instructions(start):
    running = start(Scripted("a", "b"))
    items: list[Any] = [
        {"role": "developer", "content": [{"type": "input_text", "text": "D"}]},
        {"role": "system", "content": "S"},
        {"role": "user", "content": [{"type": "input_text", "text": "1"}, {"type": "input_text", "text": "2"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "A", "annotations": []}]},
        {"role": "developer", "content": "late"},
        {"role": "user", "content": "U"},
    ]
    ask(running, input=items, instructions="I")
    prompt = running.engine.prompts[0]["prompt"]
    assert prompt == "<system>I\n\nD\n\nS<user>1\n2<assistant>A<system>late<user>U<assistant>"


def test_reasoning_that_a_client_keeps_for_itself_comes_back(start):
    running = start(Scripted("<think>\nDeep.\n</think>\n\nHi.", "ok", "ok"))
    first = ask(running, store=False, include=["reasoning.encrypted_content"])
    kept = first.output[0].model_dump(exclude_none=True)
    assert kept["encrypted_content"]
    del kept["content"]
    ask(running, input=[kept, {"role": "user", "content": "more"}])
    assert "<assistant>Deep." in running.engine.prompts[1]["prompt"]
    ask(running, input=[{**kept, "encrypted_content": "gAAAA foreign"}, {"role": "user", "content": "more"}])
    assert running.engine.prompts[2]["prompt"] == "<user>more<assistant>"


def test_custom_tools_and_namespaces(start):
    patch = "*** Begin\n+é\n*** End"
    text = "".join(
        f"<tool_call>\n{json.dumps({'name': n, 'arguments': a})}\n</tool_call>\n"
        for n, a in (("apply_patch", {"input": patch}), ("agents__spawn", {"n": 1}))
    )
    grammar = {"type": "grammar", "syntax": "lark", "definition": "start: /x/"}
    tools = [
        {"type": "custom", "name": "apply_patch", "description": "Edit", "format": grammar},
        {"type": "namespace", "name": "agents", "description": "", "tools": [{**TOOLS[0], "name": "spawn"}]},
        {"type": "web_search"},
    ]
    running = start(Scripted(text, text, "ok"))
    whole = ask(running, tools=tools)
    assert said(whole) == [("apply_patch", patch), ("spawn", '{"n": 1}')]
    assert whole.output[1].namespace == "agents"
    assert [t.type for t in whole.tools] == ["custom", "namespace"]
    events = raw(running, tools=tools)
    assert put_together(events) == events[-1]["response"]["output"]
    assert [i["type"] for i in events[-1]["response"]["output"]] == ["custom_tool_call", "function_call"]
    sent = running.post("/v1/responses", {"model": "fake", "input": "x", "tools": tools})
    assert sent.headers["x-ignored-fields"] == "tools[].web_search"
    items = [i.model_dump(exclude_none=True) for i in whole.output]
    items += [{"type": "custom_tool_call_output", "call_id": whole.output[0].call_id, "output": "done"}]
    counted = running.client().responses.input_tokens.count(model="fake", input=items, tools=tools)
    assert counted.input_tokens > len(patch)


@pytest.mark.parametrize("namespace", [False, True])
def test_a_strict_tool_is_held_to_its_schema(start, namespace):
    engine = Scripted("So.")
    engine.tokenizer = ByteTokenizer()
    engine.tokenizer.added_tokens = {9: "<tool_call>"}
    city: Any = {"type": "object", "properties": {"city": {"type": "string"}}}
    tools: list[Any] = [{"type": "function", "name": n, "parameters": city, "strict": n == "a"} for n in "ab"]
    ask(start(engine), tools=[{"type": "namespace", "name": "n", "description": "", "tools": tools}] if namespace else tools)
    held = engine.params[0].structured_outputs
    assert (held.free_until, held.grammar.count('"city"')) == ([9], 1), "the other accepts any object"
    assert [p.field for p in held.parts] == ["tools[0].tools[0].parameters" if namespace else "tools[0].parameters"]


def test_a_strict_tool_is_held_to_its_schema_where_content_has_a_form_too(start):
    engine = Scripted("So.")
    engine.tokenizer = ByteTokenizer()
    engine.tokenizer.added_tokens = {9: "<tool_call>"}
    city: Any = {"type": "object", "properties": {"city": {"type": "string"}}}
    tools: list[Any] = [{"type": "function", "name": n, "parameters": city, "strict": n == "a"} for n in "ab"]
    form: Any = {"type": "json_schema", "name": "x", "schema": {"type": "object", "required": ["degrees"]}}
    ask(start(engine), tools=tools, text={"format": form})
    held = engine.params[0].structured_outputs
    assert held.inner.json == form["schema"]
    assert held.grammar.count('"city"') == 1, "the other accepts any object"


def test_tool_choice(start):
    running = start(Scripted(CALLS, CALLS, CALLS, CALLS))
    ask(running, tools=TOOLS, tool_choice="required")
    ask(running, tools=TOOLS, tool_choice={"type": "function", "name": "get_time"}, parallel_tool_calls=False)
    one = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get_time"}]}
    ask(running, tools=TOOLS, tool_choice=one)
    ask(running, tools=TOOLS, tool_choice="none")
    grammars = [p.structured_outputs and p.structured_outputs.grammar for p in running.engine.params]
    assert "get_weather" in grammars[0]
    assert "get_time" in grammars[0]
    assert "get_weather" not in grammars[1] + grammars[2]
    assert grammars[3] is None


def test_a_schema_becomes_the_grammar_and_parse_reads_it(start):
    class Weather(pydantic.BaseModel):
        degrees: int

    running = start(Scripted('{"degrees": 20}'))
    r = running.client().responses.parse(model="fake", input="?", text_format=Weather)
    assert r.output_parsed == Weather(degrees=20)
    asked = running.engine.params[0].structured_outputs
    assert (asked.json["required"], asked.asked_as) == (["degrees"], "response_format.json_schema.schema")
    assert r.text.format.name == "Weather"


def test_effort_and_verbosity_are_variables_of_the_template(start):
    template = "{{ reasoning_effort }} {{ verbosity }} {{ enable_thinking }} {{ messages[0].content }}"
    running = start(FakeEngine(template=template))
    r = ask(running, reasoning={"effort": "high"}, text={"verbosity": "low"}, max_output_tokens=1)
    assert r.reasoning.effort == "high"
    ask(running, reasoning={"effort": "none"}, max_output_tokens=1)
    assert [p["prompt"] for p in running.engine.prompts] == ["high low  weather?", "none  False weather?"]


def test_truncation_drops_the_oldest_turns(start):
    running = start(FakeEngine(template=TEMPLATE))
    turns = [{"role": r, "content": f"{r}{i} {'x' * 20}"} for i in range(9) for r in ("user", "assistant")]
    items = [{"role": "system", "content": "S"}, *turns, {"role": "user", "content": "last"}]
    with pytest.raises(openai.BadRequestError, match="input"):
        ask(running, input=items, max_output_tokens=16)
    assert ask(running, input=items, truncation="auto", max_output_tokens=16).usage.output_tokens == 16
    prompt = running.engine.prompts[-1]["prompt"]
    assert prompt.startswith("<system>S\n<user>user")
    assert "user0" not in prompt
    assert "<user>last" in prompt
    assert len(prompt) + 16 <= 256 < len(prompt) + 16 + len("<user>userN \n<assistant>assistantN \n") + 40


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": [{"type": "computer_call"}]}, "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0].content[0]"),
        ({"input": [{"type": "function_call", "name": "x"}]}, "input[0]"),
        ({"input": [{"type": "item_reference"}]}, "input[0]"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "x"}}, "prompt.id"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"include": ["x"]}, "include"),
        ({"tools": TOOLS, "tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "name": "x"}}, "tool_choice"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [TOOLS[0], TOOLS[0]]}, "tools"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "yaml"}}}, "text.format"),
        ({"text": {"format": {"type": "json_object", "schema": 5}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_object", "json_schema": {}}}}, "text.format.json_schema"),
        ({"background": True, "store": False}, "background"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": -1}, "temperature"),
    ],
)
def test_refusals_name_the_field(server, fields, param):
    with pytest.raises(openai.BadRequestError) as e:
        ask(server, **fields)
    assert e.value.body["param"] == param


def test_errors_in_a_stream_are_a_failed_response(start):
    running = start(FakeEngine())
    events = raw(running, input="!fail")
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["status"] == "failed"
    assert events[-1]["response"]["error"]["code"] == "server_error"
    assert [e["sequence_number"] for e in events] == list(range(len(events)))
    with pytest.raises(openai.InternalServerError):
        ask(running, input="!fail")
    with pytest.raises(openai.NotFoundError):
        ask(running, model="other", stream=True)


def test_log_probabilities_of_text_alone(start):
    running = start(FakeEngine())
    asked: dict[str, Any] = {"top_logprobs": 2, "max_output_tokens": 5, "include": ["message.output_text.logprobs"]}
    r = ask(running, **asked)
    (part,) = r.output[0].content
    assert "".join(s.token for s in part.logprobs) == part.text
    assert [len(s.top_logprobs) for s in part.logprobs] == [2] * 5
    chat = running.client().chat.completions.create(
        model="fake", messages=[{"role": "user", "content": "weather?"}], max_tokens=5, logprobs=True, top_logprobs=2
    )
    assert [s.logprob for s in part.logprobs] == [s.logprob for s in chat.choices[0].logprobs.content]
    events = raw(running, **asked)
    deltas = [s for e in events if e["type"] == "response.output_text.delta" for s in e["logprobs"]]
    done = next(e for e in events if e["type"] == "response.output_text.done")
    final = events[-1]["response"]["output"][0]["content"][0]["logprobs"]
    assert deltas == done["logprobs"] == final
    assert len(final) == 5
    thinking = start(Scripted("x"))
    for fields, param in (({"top_logprobs": 1}, "top_logprobs"), ({"include": asked["include"]}, "include")):
        with pytest.raises(openai.BadRequestError, match="text-only") as e:
            ask(thinking, **fields)
        assert e.value.body["param"] == param


def test_tools_that_items_offer(start):
    """The newest models of Codex have their tools so, and all in namespaces."""
    running = start(Scripted('<tool_call>\n{"name": "functions__exec", "arguments": {"input": "1+1"}}\n</tool_call>', "ok"))
    tools = [{"type": "namespace", "name": "functions", "tools": [{"type": "custom", "name": "exec"}]}, {"type": "web_search"}]
    items: list[Any] = [
        {"type": "additional_tools", "id": "at_1", "role": "developer", "tools": tools},
        {"role": "developer", "content": "D"},
        {"role": "user", "content": "U"},
    ]
    body = {"input": items, "tool_choice": {"type": "custom", "name": "exec", "namespace": "functions"}}
    sent = running.post("/v1/responses", body)
    (call,) = sent.json()["output"]
    assert (call["type"], call["namespace"], call["name"], call["input"]) == ("custom_tool_call", "functions", "exec", "1+1")
    assert sent.headers["x-ignored-fields"] == "tools[].web_search"
    assert running.engine.prompts[0]["prompt"] == "<system>D<user>U<assistant>"
    result: list[Any] = [{"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "2"}]
    ask(running, input=result, previous_response_id=sent.json()["id"], tool_choice="required")
    assert "functions__exec" in running.engine.params[1].structured_outputs.grammar, "they are offered in later turns too"
    assert [i["type"] for i in running.get(f"/v1/responses/{sent.json()['id']}/input_items").json()["data"]][
        -1
    ] == "additional_tools"


FORM: Any = {"format": {"type": "json_schema", "name": "a", "schema": {"type": "object"}}}


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "get_weather"}])
def test_a_call_that_must_be_made_goes_before_the_form(start, choice):
    """instructor's RESPONSES_TOOLS sends both."""
    engine = Scripted(CALLS[CALLS.index("<tool_call>") :])
    r = ask(start(engine), tools=TOOLS, tool_choice=choice, text=FORM)
    assert said(r) == SAID[2:]
    assert engine.params[0].structured_outputs.inner is None


def test_tools_beside_a_form_leave_the_choice_to_the_model(start):
    content = '{"a": "<think> and <tool_call>"}'
    engine = Scripted(CALLS[CALLS.index("<tool_call>") :], content, content)
    running = start(engine)
    assert said(ask(running, tools=TOOLS, text=FORM)) == SAID[2:]
    assert said(ask(running, tools=TOOLS, text=FORM)) == [("message", content)]
    assert said(ask(running, text=FORM)) == [("message", content)]
    assert [p.structured_outputs.inner is not None for p in engine.params] == [True, True, False]
