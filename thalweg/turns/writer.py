"""The writer: a turn as its model would write it. Tests compare the reader with it."""

from __future__ import annotations

import json
from typing import Any

from thalweg.turns.events import Call, Message
from thalweg.turns.format import (
    CallHead,
    Calls,
    GemmaArgs,
    Header,
    JsonArgs,
    JsonCalls,
    PythonCalls,
    Reasoning,
    TaggedArgs,
    TurnFormat,
)  # fmt: skip


def write(turn: TurnFormat, message: Message, thinking: bool = False) -> str:
    """thinking: the prompt has opened the reasoning already."""
    calls, header = turn.calls, turn.headers
    if header is not None:
        return _messages(turn, header, message)
    out = ""
    if turn.reasoning is not None and (message.reasoning or thinking):
        out = _reasoning(turn.reasoning, message.reasoning, thinking or turn.reasoning.assumed)
    out += message.content
    if calls is not None and message.calls:
        out += (calls.lead if message.content else "") + write_calls(calls, message.calls)
    return out


def _reasoning(row: Reasoning, text: str, thinking: bool) -> str:
    opened = "" if thinking else row.open + row.around
    return opened + text + row.around + row.close + row.after


def _messages(turn: TurnFormat, header: Header, message: Message) -> str:
    """The messages of a turn. The prompt ends in the first message's opening and role."""
    parts = []
    channel = "<|channel|>" if "<|channel|>" in header.inside else ""
    if message.reasoning:
        parts.append(f"{channel}{header.reasoning}{header.end}{message.reasoning}")
    if message.content:
        parts.append(f"{header.content}{header.end}{message.content}")
    for call in message.calls:
        if header.call:
            parts.append(f"{channel}commentary {header.call}{call.name} <|constrain|>json{header.end}{call.arguments}")
        elif turn.calls is not None:
            parts.append(f"to={call.name}{header.end}{write_calls(turn.calls, [call])}")
    return (header.closes[0] + header.open + header.role).join(parts)


def write_calls(row: Calls, calls: list[Call]) -> str:
    body = row.body
    opened, closed = row.open or (row.also[0] if not row.bare else ""), row.close
    if isinstance(body, JsonCalls) and body.array:
        items = ", ".join(_item(body, c) for c in calls)
        text = f"{opened}[{items}]{closed}"
    elif isinstance(body, PythonCalls):
        items = row.separator.join(f"{c.name}({_python_args(c.arguments)})" for c in calls)
        text = f"{opened}[{items}]{closed}" if body.list else f"{opened}\n{items}\n{closed}"
    elif isinstance(body, JsonCalls):
        text = row.separator.join(opened + row.around + _item(body, c) + row.around + closed for c in calls)
    else:
        text = row.separator.join(opened + _call(row, body, c) + closed for c in calls)
    first, last = row.section
    return first + row.section_around + text + row.section_around + last if first else text


def _item(body: JsonCalls, call: Call) -> str:
    name, args = json.dumps(call.name), call.arguments
    if body.keyed:
        return f"{{{name}: {args}}}"
    id = f'"{body.ids[0]}": {json.dumps(call.id)}, ' if body.id_first else ""
    return f'{{{id}"{body.names[0]}": {name}, "{body.args[0]}": {args}}}'


def _call(row: Calls, body: Any, call: Call) -> str:
    """The text between a call's terminals."""
    head = row.head
    assert head is not None
    if head.name_in_id[1] and not call.id:
        call = Call(call.name, call.arguments, f"{head.name_in_id[0]}{call.name}{head.name_in_id[1]}0")
    args = json.loads(call.arguments)
    match body:
        case JsonArgs():
            return _head(head, call) + call.arguments + row.around
        case GemmaArgs(quote):
            return f"{call.name}{{{','.join(f'{k}:{_gemma(v, quote)}' for k, v in args.items())}}}"
        case TaggedArgs():
            began = dict(head.then)
            if "args" in began.values():
                lead = _head(head, call)
                return lead + ("" if lead.endswith("\n") else row.around) + _tags(body, args)
            return call.name + row.around + _tags(body, args)
    raise TypeError(type(body).__name__)


def _head(head: CallHead, call: Call) -> str:
    slots = {"name": call.name, "id": call.id}
    out = slots[head.first]
    for terminal, slot in head.then:
        if slot == "id" and not call.id:
            continue
        out += terminal
        if slot == "args":
            return out
        out += slots.get(slot, "")
    return out


def _tags(body: TaggedArgs, args: dict[str, Any]) -> str:
    out = []
    for key, value in args.items():
        if body.nested:
            out.append(_element(body, key, value))
            continue
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        newline = "\n" if body.newline else ""
        between = "" if body.newline else body.between
        out.append(
            body.key_open + key + _key_close(body, value) + between + body.value_open
            + newline + text + newline + body.value_close + body.after
        )  # fmt: skip
    return "".join(out)


def _key_close(body: TaggedArgs, value: Any) -> str:
    kind = "string" if isinstance(value, str) else "json"
    names = {bool: "boolean", int: "number", float: "number", dict: "object", list: "array", type(None): "null", str: "string"}
    fit = [t for t, k in body.key_close if k in (kind, None)]
    return next((t for t in fit if f'"{names[type(value)]}"' in t), fit[0])


def _element(body: TaggedArgs, key: str, value: Any) -> str:
    if isinstance(value, dict):
        inner = "".join(_element(body, k, v) for k, v in value.items())
    elif isinstance(value, list):
        inner = "".join(_element(body, "item", v) for v in value)
    else:
        inner = value if isinstance(value, str) else json.dumps(value)
    return f"{body.key_open}{key}>{inner}{body.value_close}{key}>"


def _python_args(arguments: str) -> str:
    return ", ".join(f"{k}={_python(v)}" for k, v in json.loads(arguments).items())


def _python(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def _gemma(value: Any, quote: str) -> str:
    if isinstance(value, str):
        return quote + value + quote
    if isinstance(value, dict):
        return "{" + ",".join(f"{k}:{_gemma(v, quote)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(_gemma(v, quote) for v in value) + "]"
    return json.dumps(value)
