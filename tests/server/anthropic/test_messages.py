"""The Messages API through the official client: whole, streamed, in a tool loop, counted, and refused in words."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from fake_engine import TEMPLATE, ByteTokenizer, FakeEngine
from scripted import CALLS, CHATML, Scripted

TOOLS: list[Any] = [
    {"name": n, "description": f"says {n}", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}
    for n in ("get_weather", "get_time")
]
ASK: list[Any] = [{"role": "user", "content": "weather?"}]
SAID = [("thinking", "Let me <see>."), ("text", "One moment."), ("get_weather", {"city": "París"}), ("get_time", {})]


def sdk() -> Any:
    """The official client. Its import takes longer than that of most tests, so it is left to who runs these."""
    import anthropic

    return anthropic


def client(running: Any, key: str = "none", **more: Any) -> Any:
    return sdk().Anthropic(base_url=running.url, api_key=key, max_retries=0, timeout=60, **more)


def ask(running: Any, **fields: Any) -> Any:
    return client(running).messages.create(**{"model": "fake", "messages": ASK, "max_tokens": 500, **fields})


def said(message: Any) -> list[tuple[str, Any]]:
    found = []
    for b in message.content:
        match b.type:
            case "tool_use":
                found.append((b.name, b.input))
            case kind:
                found.append((kind, getattr(b, kind)))
    return found


def raw(running: Any, **fields: Any) -> list[tuple[str, dict[str, Any]]]:
    """The events of a stream: names and bodies."""
    body = {"model": "fake", "messages": ASK, "max_tokens": 500, "stream": True, **fields}
    frames = running.post("/v1/messages", body).text.split("\n\n")
    pairs = [f.split("\n") for f in frames if f]
    return [(a.removeprefix("event: "), json.loads(b.removeprefix("data: "))) for a, b in pairs]


ONE_SYSTEM = """{% for m in messages %}
{%- if m.role == 'system' and not loop.first %}{{ raise_exception('first alone') }}{% endif %}
{{- m.role + ':' + m.content + '|' }}{% endfor %}"""


@pytest.mark.slow
def test_a_system_message_in_the_middle_reaches_models_whose_template_takes_none(start):
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "system", "content": "be brief"}]
    fake = FakeEngine(template=ONE_SYSTEM)
    r = ask(start(fake), system="S", messages=[*said, {"role": "user", "content": "c"}])
    assert r.type == "message"
    assert fake.prompts[0]["prompt"] == "system:S|user:a|assistant:b|user:<system>\nbe brief\n</system>\nc|"


def test_a_whole_answer(start):
    r = ask(start(Scripted(CALLS)), tools=TOOLS)
    assert said(r) == SAID
    assert r.content[0].signature
    assert (r.type, r.role, r.model, r.stop_reason, r.stop_sequence) == ("message", "assistant", "fake", "tool_use", None)
    assert len({b.id for b in r.content[2:]}) == 2
    assert r.usage.output_tokens == len(CALLS)


def test_the_clients_own_accumulator_of_a_stream_equals_the_whole(start):
    running = start(Scripted(CALLS, CALLS))
    whole = ask(running, tools=TOOLS)
    with client(running).messages.stream(model="fake", messages=ASK, max_tokens=500, tools=TOOLS) as stream:
        done = stream.get_final_message()
    assert said(done) == said(whole) == SAID
    assert done.content[0].signature == whole.content[0].signature
    assert (done.stop_reason, done.usage.output_tokens) == ("tool_use", whole.usage.output_tokens)
    assert done.usage.input_tokens == whole.usage.input_tokens


def test_the_order_of_a_stream(start):
    events = raw(start(Scripted(CALLS)), tools=TOOLS)
    assert all(name == body["type"] for name, body in events)
    names = [name for name, _ in events]
    assert (names[0], names[-2:]) == ("message_start", ["message_delta", "message_stop"])
    at, pieces = -1, []
    for name, body in events[1:-2]:
        if name == "content_block_start":
            at, pieces = at + 1, []
        elif name == "content_block_delta":
            pieces.append(body["delta"]["type"])
        else:
            assert name == "content_block_stop"
            kind = ("thinking", "text", "input_json", "input_json")[at]
            ends = ["signature_delta"] if kind == "thinking" else []
            assert set(pieces[: len(pieces) - len(ends)]) == {f"{kind}_delta"}
            assert pieces[len(pieces) - len(ends) :] == ends
        assert body["index"] == at
    assert at == 3
    assert names.count("content_block_stop") == 4
    arguments = [b["delta"].get("partial_json", "") for _, b in events if b.get("index") == 2 and "delta" in b]
    assert "".join(arguments) == '{"city":"Par\\u00eds"}', "verbatim"


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_loop(start, stream):
    running = start(Scripted(CALLS, "<think>\nok\n</think>\n\nIt is 20 degrees."))
    first = ask(running, tools=TOOLS)
    results = [
        {"type": "tool_result", "tool_use_id": first.content[2].id, "content": [{"type": "text", "text": "20 degrees"}]},
        {"type": "tool_result", "tool_use_id": first.content[3].id, "content": "no clock", "is_error": True},
        {"type": "text", "text": "go on"},
    ]
    messages = [*ASK, {"role": "assistant", "content": first.content}, {"role": "user", "content": results}]
    if stream:
        with client(running).messages.stream(model="fake", messages=messages, max_tokens=50, tools=TOOLS) as s:
            r = s.get_final_message()
    else:
        r = ask(running, messages=messages, tools=TOOLS)
    assert (said(r), r.stop_reason) == ([("thinking", "ok"), ("text", "It is 20 degrees.")], "end_turn")
    prompt = running.engine.prompts[1]["prompt"]
    assert "<assistant>Let me <see>.One moment." in prompt
    assert '"arguments": {"city": "Par' in prompt
    assert "<tool>20 degrees<tool>Error: no clock<user>go on" in prompt


def test_system_text_in_front_and_in_the_middle(start):
    running = start(FakeEngine())
    system = [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=1; cch=abc;"},
        {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
    ]
    messages = [*ASK, {"role": "system", "content": "Now in French."}, {"role": "user", "content": "?"}]
    ask(running, system=system, messages=messages, max_tokens=2)
    ask(running, system="x-anthropic-billing-header: cch=def;\nBe brief.", messages=messages, max_tokens=2)
    for sent in running.engine.prompts:
        assert sent["prompt"] == "<system>Be brief.\n<user>weather?\n<system>Now in French.\n<user>?\n<assistant>"


def test_an_answer_that_is_begun_goes_on(start):
    running = start(FakeEngine())
    ask(running, messages=[*ASK, {"role": "assistant", "content": "It is"}], max_tokens=2)
    assert running.engine.prompts[0]["prompt"] == "<user>weather?\n<assistant>It is"


def test_how_answers_end(start):
    running = start(FakeEngine())
    r = ask(running, max_tokens=5)
    assert (r.stop_reason, r.usage.output_tokens) == ("max_tokens", 5)
    assert (r.usage.cache_read_input_tokens, r.usage.cache_creation_input_tokens) == (3, 0)
    assert r.usage.input_tokens + 3 == len(running.engine.prompts[0]["prompt_token_ids"])
    stop = r.content[0].text[2]
    for stream in (False, True):
        if stream:
            with client(running).messages.stream(model="fake", messages=ASK, max_tokens=50, stop_sequences=[stop]) as s:
                r = s.get_final_message()
        else:
            r = ask(running, stop_sequences=[stop])
        assert (r.stop_reason, r.stop_sequence) == ("stop_sequence", stop)
    events = raw(running, max_tokens=5)
    start_usage, end_usage = events[0][1]["message"]["usage"], events[-2][1]["usage"]
    assert start_usage == {**end_usage, "output_tokens": 0}
    assert end_usage["cache_read_input_tokens"] == 3


def test_sampling_fields_reach_the_engine(start):
    running = start(Scripted("x"))
    sampling = {"temperature": 0.5, "top_p": 0.25, "top_k": 7}  # newer clients have no arguments of these names
    ask(running, stop_sequences=["!"], max_tokens=9, extra_body=sampling)
    p = running.engine.params[0]
    assert (p.temperature, p.top_p, p.top_k, p.stop, p.max_tokens) == (0.5, 0.25, 7, ["!"], 9)


def test_thinking_is_a_variable_of_the_template(start):
    running = start(Scripted(*["<think>\na\n</think>\n\nb"] * 4, template=CHATML + "{{ enable_thinking }}"))
    for thinking, seen, blocks in (
        ({"type": "enabled", "budget_tokens": 1024}, "True", 2),
        ({"type": "disabled"}, "False", 1),
        ({"type": "adaptive"}, "", 2),
        (None, "", 2),
    ):
        r = ask(running, **({} if thinking is None else {"thinking": thinking}))
        assert running.engine.prompts[-1]["prompt"].endswith("<assistant>" + seen)
        assert len(r.content) == blocks


def test_an_effort_may_go_with_thinking_that_is_disabled(start):
    engine = Scripted(*["b"] * 3, template=CHATML + "{{ reasoning_effort }}")
    running = start(engine, anthropic_disabled_thinking_effort="low")
    for fields, seen in (
        ({"thinking": {"type": "disabled"}}, "low"),
        ({"thinking": {"type": "disabled"}, "extra_body": {"chat_template_kwargs": {"reasoning_effort": "max"}}}, "max"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, ""),
    ):
        ask(running, **fields)
        assert engine.prompts[-1]["prompt"].endswith("<assistant>" + seen)


@pytest.mark.parametrize(("choice", "forced"), [({"type": "any"}, True), ({"type": "tool", "name": "get_time"}, True),
                                               ({"type": "auto"}, False)])  # fmt: skip
def test_tool_choice(start, choice, forced):
    engine = Scripted('<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>')
    r = ask(start(engine), tools=TOOLS, tool_choice=choice)
    assert (said(r), r.stop_reason) == ([("get_time", {})], "tool_use")
    assert (engine.params[0].structured_outputs is not None) == forced


def test_the_schema_of_a_tool_is_named_as_this_api_writes_it(start):
    engine = Scripted('<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>')
    ask(start(engine), tools=[*TOOLS[1:], TOOLS[0]], tool_choice={"type": "any"})
    fields = [p.field for p in engine.params[0].structured_outputs.parts]
    assert fields
    assert set(fields) <= {f"tools[{i}].input_schema" for i in range(len(TOOLS))}


def test_no_tool_and_one_tool(start):
    running = start(Scripted(CALLS, CALLS))
    r = ask(running, tools=TOOLS, tool_choice={"type": "none"})
    assert [b.type for b in r.content] == ["thinking", "text"]
    assert r.stop_reason == "end_turn"
    r = ask(running, tools=TOOLS, tool_choice={"type": "auto", "disable_parallel_tool_use": True})
    assert [b.type for b in r.content] == ["thinking", "text", "tool_use"]


def test_a_schema_of_the_answer_constrains_it(start):
    running = start(Scripted("{}"))
    form = {"type": "json_schema", "schema": {"type": "object"}}
    ask(running, extra_body={"output_config": {"format": form, "effort": "low"}})
    assert running.engine.params[0].structured_outputs.json == {"type": "object"}
    with pytest.raises(sdk().BadRequestError, match=r"output_config\.format"):
        ask(running, extra_body={"output_config": {"format": {"type": "yaml"}}})


def test_a_schema_under_its_older_name_constrains_the_answer(start):
    """`output_format`, as clients of the structured-outputs beta send it."""
    running = start(Scripted("{}"))
    form = {"type": "json_schema", "schema": {"type": "object"}}
    r = running.post("/v1/messages", {"model": "fake", "messages": ASK, "max_tokens": 9, "output_format": form})
    assert (r.status_code, r.headers.get("x-ignored-fields")) == (200, None)
    assert running.engine.params[0].structured_outputs.json == {"type": "object"}
    with pytest.raises(sdk().BadRequestError, match=r"output_format: output_config\.format is there too"):
        ask(running, extra_body={"output_format": form, "output_config": {"format": form}})


def test_a_strict_tool_is_held_to_its_schema(start):
    engine = Scripted("So.")
    engine.tokenizer = ByteTokenizer()
    engine.tokenizer.added_tokens = {9: "<tool_call>"}
    r = ask(start(engine), tools=[{**TOOLS[0], "strict": True}, TOOLS[1]])
    assert r.stop_reason == "end_turn"
    held = engine.params[0].structured_outputs
    assert (held.free_until, held.grammar.count('"city"')) == ([9], 1), "the other accepts any object"


def test_a_strict_tool_is_held_to_its_schema_where_content_has_a_form_too(start):
    engine = Scripted("So.")
    engine.tokenizer = ByteTokenizer()
    engine.tokenizer.added_tokens = {9: "<tool_call>"}
    form = {"type": "json_schema", "schema": {"type": "object", "required": ["degrees"]}}
    ask(start(engine), tools=[{**TOOLS[0], "strict": True}, TOOLS[1]], extra_body={"output_config": {"format": form}})
    held = engine.params[0].structured_outputs
    assert held.inner.json == form["schema"]
    assert held.grammar.count('"city"') == 1, "the other accepts any object"


def test_hints_are_accepted_and_told(start):
    running = start(Scripted(CALLS))
    body = {
        "model": "fake", "messages": [{"role": "user", "content": [{"type": "text", "text": "?", "cache_control": {}}]}],
        "max_tokens": 9, "tools": [*TOOLS, {"type": "web_search_20250305", "name": "web_search"}], "metadata": {"user_id": "a"},
        "context_management": {}, "thinking": {"type": "adaptive"},
    }  # fmt: skip
    r = running.post("/v1/messages?beta=true", body, headers={"anthropic-version": "2023-06-01", "anthropic-beta": "x"})
    assert r.status_code == 200
    told = "context_management, tools[].web_search_20250305"
    assert r.headers["x-ignored-fields"] == told


@pytest.mark.parametrize(
    ("fields", "seconds"),
    [
        ({}, None),
        ({"cache_control": {"type": "ephemeral"}}, 300),
        ({"system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral", "ttl": "1h"}}]}, 3600),
        ({"tools": [{**TOOLS[0], "cache_control": {"type": "ephemeral", "ttl": "5m"}}], "cache_retention": 7}, 7),
        ({"tools": TOOLS}, 300),
    ],
)
def test_cache_control_keeps_the_conversation_for_its_ttl(start, fields, seconds):
    running = start(Scripted("hello"))
    body = {"model": "fake", "messages": [{"role": "user", "content": "?"}], "max_tokens": 9, **fields}
    r = running.post("/v1/messages", body)
    assert r.status_code == 200, r.text
    assert "x-ignored-fields" not in r.headers
    assert running.engine.params[-1].cache_retention == seconds


def test_an_unknown_ttl_is_refused_by_its_place(start):
    block = {"type": "text", "text": "?", "cache_control": {"type": "ephemeral", "ttl": "2d"}}
    body = {"model": "fake", "messages": [{"role": "user", "content": [block]}], "max_tokens": 9}
    r = start(Scripted("hello")).post("/v1/messages", body)
    assert r.status_code == 400
    assert "messages[0].content[0].cache_control" in r.json()["error"]["message"]


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, r"messages\[0\]\.content\[0\].*image"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [IMAGE]}]}]},
         r"messages\[0\]\.content\[0\]\.content\[0\].*image"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "tool_use_id"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "a", "name": "b", "input": {}}]}]}, "tool_use"),
        ({"tools": [TOOLS[0], TOOLS[0]]}, "tools"),
        ({"tools": [{"name": "a"}]}, "input_schema"),
        ({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "other"}}, "tool_choice"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"stop_sequences": ["x" * 5000]}, "stop_sequences"),
        ({"temperature": -1}, "temperature"),
        ({"mcp_servers": [{"type": "url"}]}, "mcp_servers"),
        ({"messages": [{"role": "user", "content": "x" * 9000}]}, "prompt is too long"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.sampled(7)
def test_refusals_name_the_field(start, fields, names, stream):
    running = start(Scripted())
    body = {"model": "fake", "messages": ASK, "max_tokens": 5, "stream": stream, **fields}
    r = running.post("/v1/messages", {k: v for k, v in body.items() if v is not None})
    assert r.status_code == 400
    error = r.json()
    assert (error["type"], error["error"]["type"]) == ("error", "invalid_request_error")
    assert re.search(names, error["error"]["message"])


def test_errors_have_this_apis_types(start):
    running = start(FakeEngine())
    with pytest.raises(sdk().NotFoundError) as e:
        ask(running, model="other")
    assert e.value.body["error"]["type"] == "not_found_error"
    with pytest.raises(sdk().InternalServerError) as e:
        ask(running, messages=[{"role": "user", "content": "!fail"}])
    assert e.value.body["error"]["type"] == "api_error"


def test_an_error_in_the_middle_of_a_stream(start):
    events = raw(start(FakeEngine()), messages=[{"role": "user", "content": "!fail"}])
    assert events[0][0] == "message_start"
    name, body = events[-1]
    assert (name, body["type"], body["error"]["type"]) == ("error", "error", "api_error")


def test_a_model_of_no_known_format_is_refused_tools(start):
    with pytest.raises(sdk().BadRequestError, match="--tool-call-parser"):
        ask(start(Scripted(template=TEMPLATE)), tools=TOOLS)


def test_tokens_are_counted_with_system_tools_and_results(start):
    template = TEMPLATE + "{{ tools | tojson if tools }}"
    running = start(Scripted("x", template=template))
    messages = [
        *ASK, {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "get_time", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "é"}]}]},
    ]  # fmt: skip
    counted = client(running).messages.count_tokens(model="fake", messages=messages, system="Be brief.", tools=TOOLS)
    texts = [json.dumps({"type": "function", "function": {"name": t["name"], "description": t["description"],
             "parameters": t["input_schema"]}}) for t in TOOLS]  # fmt: skip
    prompt = "<system>Be brief.\n<user>weather?\n<assistant>\n<tool>é\n<assistant>[" + ", ".join(texts) + "]"
    assert counted.input_tokens == len(prompt.encode())
    long = client(running).messages.count_tokens(model="fake", messages=[{"role": "user", "content": "x" * 9000}])
    assert long.input_tokens > 9000
    with pytest.raises(sdk().BadRequestError, match="messages"):
        client(running).messages.count_tokens(model="fake", messages=[])


def test_either_header_carries_the_key(start):
    running = start(Scripted("x", "x"), api_key=("s3cret",))
    assert said(client(running, "s3cret").messages.create(model="fake", messages=ASK, max_tokens=5)) == [("text", "x")]
    bearer = sdk().Anthropic(base_url=running.url, auth_token="s3cret", api_key=None, max_retries=0)
    assert said(bearer.messages.create(model="fake", messages=ASK, max_tokens=5)) == [("text", "x")]
    with pytest.raises(sdk().AuthenticationError):
        client(running, "wrong").messages.create(model="fake", messages=ASK, max_tokens=5)


def test_clients_ask_whether_somebody_is_here(start):
    running = start()
    assert running.http.head("/").status_code == 200
    assert running.get("/").status_code == 404


def test_a_call_that_was_cut_off(start):
    """A stream has what there is of the arguments. A whole answer has no input that was not said to its end."""
    cut = CALLS[: CALLS.index("\\u00")]
    running = start(Scripted(cut, cut, reason="length"))
    r = ask(running, tools=TOOLS)
    assert (said(r), r.stop_reason) == ([*SAID[:2], ("get_weather", {})], "max_tokens")
    events = raw(running, tools=TOOLS)
    assert "".join(b["delta"].get("partial_json", "") for _, b in events if "delta" in b) == '{"city":"Par'
    assert [name for name, _ in events][-3:] == ["content_block_stop", "message_delta", "message_stop"]


@pytest.mark.parametrize("stream", [False, True])
def test_white_space_alone_makes_no_block(start, stream):
    running = start(Scripted("  \n ", template=TEMPLATE))
    if stream:
        names = [name for name, _ in raw(running)]
        assert names == ["message_start", "message_delta", "message_stop"]
    else:
        assert ask(running).content == []
