"""What a route answered is accepted back, in every dialect that can carry it, however the answer was cut off.

A scripted engine says a text up to each of its letters. Each answer becomes the history of one more request.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from amounts import some
from fake_engine import EOS, config
from scripted import CHATML, Scripted
from turn_samples import TOOL_PARSERS, TOOL_PARSERS_032

from thalweg.turns.events import Call
from thalweg.turns.events import Message as Words
from thalweg.turns.format import TurnFormat
from thalweg.turns.table import calls_named
from thalweg.turns.writer import write

Json = dict[str, Any]
JSON = {"content-type": "application/json"}


def tagged(*arguments: str, name: str = "ls") -> str:
    return "\n".join(f'<tool_call>\n{{"name": "{name}", "arguments": {a}}}\n</tool_call>' for a in arguments)


THOUGHT = "<think>\nHm.\n</think>\n\nI look.\n"
ELEMENTS = CHATML.replace('"arguments":', "<function= <parameter=")
FORMATS = {
    "JSON in tags": (CHATML, THOUGHT + tagged('{"path": "a\\"b"}')),
    "elements": (
        ELEMENTS,
        f"{THOUGHT}<tool_call>\n<function=ls>\n<parameter=path>\na\n</parameter>\n</function>\n</tool_call>",
    ),
    "null": (CHATML, tagged("null")),
    "no object": (CHATML, tagged('"a"')),
    "a line break in a string": (CHATML, tagged('{"path": "a\nb"}')),
    "half a letter": (CHATML, tagged('{"path": "\\ud800"}')),
    "two calls": (CHATML, tagged("{}", '{"path": 1}')),
    "a function without a name": (CHATML, tagged("{}", name="")),
}
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}
OPENAI_TOOLS = [{"type": "function", "function": {"name": "ls", "parameters": SCHEMA}}]
TOOLS: dict[str, Any] = {
    "chat": OPENAI_TOOLS,
    "responses": [{"type": "function", "name": "ls", "parameters": SCHEMA}],
    "messages": [{"name": "ls", "input_schema": SCHEMA}],
    "cohere": OPENAI_TOOLS,
}
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages", "cohere": "/v2/chat"}


def body(dialect: str, history: list[Json]) -> Json:
    said = [{"role": "user", "content": "look"}, *history]
    most = {"responses": "max_output_tokens"}.get(dialect, "max_tokens")
    return {"model": "fake", "input" if dialect == "responses" else "messages": said, "tools": TOOLS[dialect], most: 500}


# ------------------------------------------------------------------ an answer as its own client sends it back


def chat_back(answer: Json) -> list[Json]:
    said = answer["choices"][0]["message"]
    return [said, *({"role": "tool", "tool_call_id": c["id"], "content": "ok"} for c in said.get("tool_calls") or ())]


def responses_back(answer: Json) -> list[Json]:
    calls = [i["call_id"] for i in answer["output"] if i["type"] == "function_call"]
    return [*answer["output"], *({"type": "function_call_output", "call_id": c, "output": "ok"} for c in calls)]


def messages_back(answer: Json) -> list[Json]:
    calls = [b["id"] for b in answer["content"] if b["type"] == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": c, "content": "ok"} for c in calls]
    return [
        {"role": "assistant", "content": answer["content"]},
        {"role": "user", "content": [*results, {"type": "text", "text": "go on"}]},
    ]


def cohere_back(answer: Json) -> list[Json]:
    said = answer["message"]
    return [said, *({"role": "tool", "tool_call_id": c["id"], "content": "ok"} for c in said.get("tool_calls") or ())]


BACK: dict[str, Callable[[Json], list[Json]]] = {
    "chat": chat_back, "responses": responses_back, "messages": messages_back, "cohere": cohere_back,
}  # fmt: skip


# ------------------------------------------------------------------ a chat's answer as history of the other dialects


def as_responses(said: Json) -> list[Json]:
    out: list[Json] = []
    if said.get("reasoning"):
        out.append({"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": said["reasoning"]}]})
    if said.get("content") is not None:
        out.append({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": said["content"]}]})
    for call in said.get("tool_calls") or ():
        out.append({"type": "function_call", "call_id": call["id"], **call["function"]})
        out.append({"type": "function_call_output", "call_id": call["id"], "output": "ok"})
    return out


def as_messages(said: Json) -> list[Json]:
    blocks: list[Json] = []
    if said.get("reasoning"):
        blocks.append({"type": "thinking", "thinking": said["reasoning"], "signature": ""})
    if said.get("content") is not None:
        blocks.append({"type": "text", "text": said["content"]})
    results = []
    for call in said.get("tool_calls") or ():
        blocks.append({"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": read(call)})
        results.append({"type": "tool_result", "tool_use_id": call["id"], "content": "ok"})
    return [
        {"role": "assistant", "content": blocks},
        {"role": "user", "content": [*results, {"type": "text", "text": "go on"}]},
    ]


def read(call: Json) -> Any:
    """What a client makes of arguments: their value, or the text where they have none."""
    try:
        return json.loads(call["function"]["arguments"])
    except ValueError:
        return call["function"]["arguments"]


def as_cohere(said: Json) -> list[Json]:
    content: list[Json] = []
    if said.get("reasoning"):
        content.append({"type": "thinking", "thinking": said["reasoning"]})
    if said.get("content") is not None:
        content.append({"type": "text", "text": said["content"]})
    message: Json = {"role": "assistant", "content": content}
    if said.get("tool_calls"):
        message |= {"tool_calls": said["tool_calls"], "tool_plan": ""}
    return [message, *({"role": "tool", "tool_call_id": c["id"], "content": "ok"} for c in said.get("tool_calls") or ())]


ACROSS: dict[str, Callable[[Json], list[Json]]] = {"responses": as_responses, "messages": as_messages, "cohere": as_cohere}


def cuts(text: str) -> Iterator[str]:
    """The text up to each of its letters, or to some of them."""
    yield from (text[:n] for n in range(0, len(text), some(9, 1)))
    yield text


def status(running: Any, dialect: str, history: list[Json]) -> str:
    running.engine.texts.append("Done.")
    reply = running.http.post(PATHS[dialect], content=json.dumps(body(dialect, history)), headers=JSON)
    if reply.status_code != 200:
        running.engine.texts.clear()
        return f"{dialect} {reply.status_code} {reply.text[:300]} for {json.dumps(history)[:400]}"
    return ""


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("dialect", PATHS)
@pytest.mark.sampled(1, 10)
def test_an_answer_that_was_cut_anywhere_is_accepted_back(start: Any, format: str, dialect: str) -> None:
    template, text = FORMATS[format]
    running = start(Scripted(template=template))
    running.engine.config = config(max_len=16384)
    wrong: list[str] = []
    seen: set[str] = set()
    for cut in cuts(text):
        running.engine.texts, running.engine.reason = [cut], "stop" if cut == text else "length"
        reply = running.post(PATHS[dialect], body(dialect, []))
        assert reply.status_code == 200, (cut, reply.text)
        answer = reply.json()
        wrong.append(status(running, dialect, BACK[dialect](answer)))
        if cut == text:
            assert '"ls"' in reply.text or "function" in format, "the format is read"
        if dialect == "chat":
            said = answer["choices"][0]["message"]
            key = json.dumps({**said, "tool_calls": [c["function"] for c in said.get("tool_calls") or ()]})
            across = {
                d: m for d, m in ACROSS.items() if key not in seen and not (d == "messages" and format == "half a letter")
            }
            wrong += [status(running, other, made(said)) for other, made in across.items()]
            seen.add(key)
    assert [w for w in wrong if w] == []


NAMES = [n for n in (*TOOL_PARSERS, *TOOL_PARSERS_032) if n != "hf"]


@pytest.mark.parametrize("name", some(NAMES[::9], NAMES))
@pytest.mark.sampled(1, 24)
def test_a_call_of_every_format_that_was_cut_is_accepted_back(start: Any, name: str) -> None:
    call = Call("ls", '{"path": "a\\"b", "more": {"x": [1]}}', "")
    text = write(TurnFormat(calls=calls_named(name)), Words("I look.", "", [call]))
    running = start(Scripted(template=CHATML), tool_call_parser=name)
    rng, wrong = random.Random(name), []
    for cut in sorted(rng.sample(range(1, len(text)), some(4, 10))):
        running.engine.texts, running.engine.reason = [text[:cut]], "length"
        reply = running.post(PATHS["chat"], body("chat", []))
        assert reply.status_code == 200, (text[:cut], reply.text)
        answer = reply.json()
        wrong.append(status(running, "chat", chat_back(answer)))
        wrong += [status(running, other, made(answer["choices"][0]["message"])) for other, made in ACROSS.items()]
    assert [w for w in wrong if w] == []


@pytest.mark.parametrize("dialect", PATHS)
def test_a_function_that_nobody_offered_is_accepted_back_by_any_name(start: Any, dialect: str) -> None:
    running = start(Scripted(tagged("{}", name="x" * 1500), template=CHATML))
    running.engine.config = config(max_len=16384)
    reply = running.post(PATHS[dialect], body(dialect, []))
    assert "x" * 1500 in reply.text
    assert status(running, dialect, BACK[dialect](reply.json())) == ""


CUSTOM = {"type": "custom", "name": "patch", "format": {"type": "text"}}


@pytest.mark.slow
def test_a_custom_tools_call_that_was_cut_anywhere_is_accepted_back(start: Any) -> None:
    running = start(Scripted(template=CHATML))
    text = tagged('{"input": "*** Begin"}', name="patch")
    asked = body("responses", []) | {"tools": [CUSTOM]}
    for cut in cuts(text):
        running.engine.texts, running.engine.reason = [cut, "Done."], "stop" if cut == text else "length"
        output = running.post(PATHS["responses"], asked).json()["output"]
        calls = [i["call_id"] for i in output if i["type"] == "custom_tool_call"]
        results = [{"type": "custom_tool_call_output", "call_id": c, "output": "ok"} for c in calls]
        reply = running.post(PATHS["responses"], asked | {"input": [*asked["input"], *output, *results]})
        assert reply.status_code == 200, (cut, reply.text)
    assert calls


@pytest.mark.parametrize("format", ["JSON in tags", "elements"])
@pytest.mark.slow
def test_a_response_that_was_cut_anywhere_may_be_followed_by_its_id(start: Any, format: str) -> None:
    template, text = FORMATS[format]
    running = start(Scripted(template=template))
    for cut in cuts(text):
        running.engine.texts, running.engine.reason = [cut, "Done."], "length"
        first = running.post(PATHS["responses"], body("responses", [])).json()
        calls = [i["call_id"] for i in first["output"] if i["type"] == "function_call"]
        rest = [{"type": "function_call_output", "call_id": c, "output": "ok"} for c in calls]
        asked = body("responses", rest) | {"previous_response_id": first["id"]}
        reply = running.post(PATHS["responses"], asked)
        assert reply.status_code == 200, (cut, reply.text)


DEEP = '{"a": ' * 200 + "1" + "}" * 200
ARGUMENTS = [
    *('{"path": "mkdir', '{"path": "a\nb"}', "null", "", "{}", "[1]", '"a"', "{", "nan", '{"a": NaN}', "{" * 5000, DEEP),
    *('{"a": ' + "9" * 5000 + "}", '{"a": 1e999}', '{"a": "\\ud800"}', "\x00", "{}{}"),
]
NO_VALUE = ("nan", '{"a": NaN}', '{"a": 1e999}', DEEP, '{"a": ' + "9" * 5000 + "}", '{"a": "\\ud800"}')
"""Those whose value no JSON body can hold. Clients that send values cannot send them."""


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=lambda a: a[:20].encode("unicode_escape").decode())
@pytest.mark.sampled(4)
def test_any_text_of_arguments_is_accepted_in_every_dialect(start: Any, arguments: str) -> None:
    running = start(Scripted(template=CHATML))
    running.engine.config = config(max_len=16384)
    call = {"id": "call_1", "type": "function", "function": {"name": "ls", "arguments": arguments}}
    said = {"role": "assistant", "content": None, "tool_calls": [call]}
    made = {"chat": lambda m: chat_back({"choices": [{"message": m}]}), **ACROSS}
    if arguments in NO_VALUE:
        del made["messages"]
    assert [w for w in (status(running, d, convert(said)) for d, convert in made.items()) if w] == []


def shown(running: Any, arguments: Any) -> str:
    """What a template shows of a call with these arguments."""
    running.engine.texts = ["Done."]
    call = {"id": "call_1", "type": "function", "function": {"name": "ls", "arguments": arguments}}
    reply = running.post(
        PATHS["chat"], body("chat", chat_back({"choices": [{"message": {"role": "assistant", "tool_calls": [call]}}]}))
    )
    assert reply.status_code == 200, reply.text
    prompt = running.engine.prompts[-1]["prompt_token_ids"]
    return bytes(i for i in prompt if i < EOS).decode()


def test_a_template_that_prints_arguments_shows_what_the_model_wrote(start: Any) -> None:
    running = start(Scripted(template=CHATML))
    assert '{"name": "ls", "arguments": {"path": 1}}' in shown(running, '{"path":1}')
    assert '{"name": "ls", "arguments": {"path": 1}}' in shown(running, {"path": 1})
    assert json.dumps('{"path": "mk') in shown(running, '{"path": "mk')
    for nothing in ("", "null", None):
        assert '{"name": "ls", "arguments": {}}' in shown(running, nothing)


ITERATES = (
    '{# <tool_call> </tool_call> "arguments": #}{% for m in messages %}<{{ m.role }}>{{ m.content }}'
    "{% for c in m.tool_calls or [] %}<{{ c.function.name }}"
    "{% for k, v in c.function.arguments|items %} {{ k }}={{ v }}{% endfor %}>"
    "{% endfor %}{% endfor %}<assistant>"
)
METHOD = ITERATES.replace("arguments|items", "arguments.items()")
JOINS = ITERATES.replace(
    "{% for k, v in c.function.arguments|items %} {{ k }}={{ v }}{% endfor %}", "{{ ' ' + (c.function.arguments | tojson) }}"
)
ADDS = JOINS.replace("(c.function.arguments | tojson)", "c.function.arguments")


@pytest.mark.parametrize(
    ("template", "sees"),
    [(ITERATES, "<ls>"), (METHOD, "<ls>"), (JOINS, '<ls {"path": "mk>'), (ADDS, '<ls {"path": "mk>')],
    ids=["items filter", "items method", "tojson", "a text added"],
)
def test_every_way_to_read_arguments_works_where_they_are_cut_off(start: Any, template: str, sees: str) -> None:
    assert sees in shown(start(Scripted(template=template)), '{"path": "mk')


@pytest.mark.parametrize("arguments", [[1], 1, True])
def test_arguments_that_are_neither_text_nor_an_object_are_refused_by_their_field(start: Any, arguments: Any) -> None:
    running = start(Scripted(template=CHATML))
    call = {"id": "1", "type": "function", "function": {"name": "ls", "arguments": arguments}}
    reply = running.post(PATHS["chat"], body("chat", [{"role": "assistant", "tool_calls": [call]}]))
    assert reply.status_code == 400
    assert "messages[1].tool_calls[0].function.arguments" in reply.json()["error"]["message"]
