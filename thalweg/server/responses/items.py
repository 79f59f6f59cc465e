"""Items as the messages of a chat, and as a client may list them."""

from __future__ import annotations

import base64
import binascii
import uuid
from collections.abc import Iterable
from typing import Any

from thalweg.server.responses.protocol import Item, ResponsePart
from thalweg.server.responses.tools import arguments_of, qualified_name

ENCODED = "thalweg.1."
"""How reasoning begins that a client keeps for itself (`encrypted_content`). It is encoded, not encrypted."""
PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "additional_tools": "at",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
}
Json = dict[str, Any]


def new_id(kind: str) -> str:
    """An id for an item of this type."""
    return f"{PREFIXES[kind]}_{uuid.uuid4().hex}"


def messages_of(items: Iterable[Item], instructions: str | None = None) -> list[Json]:
    """Chat messages. Consecutive reasoning, content and calls of the assistant are one message. Leading system texts are one
    message too, because many templates accept no second one."""
    out: list[Json] = []
    systems: list[str] = [instructions] if instructions else []
    turn: Json | None = None
    for item in items:
        if item.type == "additional_tools" or (item.type == "reasoning" and not thought_of(item)):
            continue  # it is empty, or not readable here
        if item.type in ("reasoning", "function_call", "custom_tool_call") or item.role == "assistant":
            if turn is None or (item.type == "message" and turn["content"]):
                turn = {"role": "assistant", "content": ""}
                out.append(turn)
            _add(turn, item)
            continue
        turn = None
        if item.type != "message":
            out.append({"role": "tool", "tool_call_id": item.call_id, "content": text_of(item.output)})
        elif item.role == "user":
            out.append({"role": "user", "content": _content(item.content)})
        elif out:
            out.append({"role": "system", "content": _content(item.content)})
        else:
            systems.append(text_of(item.content))
    return [{"role": "system", "content": "\n\n".join(systems)}, *out] if systems else out


def _add(turn: Json, item: Item) -> None:
    match item.type:
        case "reasoning":
            turn["reasoning"] = turn.get("reasoning", "") + thought_of(item)
        case "message":
            turn["content"] = text_of(item.content)
        case _:
            custom = item.type == "custom_tool_call"
            arguments = arguments_of(item.input or "") if custom else item.arguments
            function = {"name": qualified_name(item.namespace, item.name or ""), "arguments": arguments}
            turn.setdefault("tool_calls", []).append({"id": item.call_id, "type": "function", "function": function})


def thought_of(item: Item) -> str:
    """The text of a reasoning item: its content, else its content as encoded by this server, else its summary."""
    if item.content:
        return text_of(item.content)
    return decode_thought(item.encrypted_content or "") or text_of(item.summary)


def encode_thought(thought: str) -> str:
    return ENCODED + base64.b64encode(thought.encode(errors="surrogatepass")).decode()


def decode_thought(text: str) -> str:
    """`encoded`'s inverse. "": it was encoded elsewhere, and cannot be read."""
    if not text.startswith(ENCODED):
        return ""
    try:
        return base64.b64decode(text.removeprefix(ENCODED), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""


def text_of(content: str | list[ResponsePart] | None) -> str:
    return content if isinstance(content, str) else "\n".join(p.content_text for p in content or ())


def _content(content: str | list[ResponsePart] | None) -> Any:
    """A single text unchanged, several as parts for the template to join."""
    if isinstance(content, str) or content is None:
        return content or ""
    parts: list[Json] = [
        {"type": "image_url", "image_url": {"url": p.image_url}}
        if p.type == "input_image"
        else {"type": "text", "text": p.content_text}
        for p in content
    ]
    return parts[0]["text"] if len(parts) == 1 and "text" in parts[0] else parts or ""


def dump_item(item: Item) -> Json:
    """An input item as it is kept and listed, with an id."""
    out = item.model_dump(exclude_none=True)
    out["id"] = item.id or new_id(item.type)
    if item.type == "message":
        out["status"] = item.status or "completed"
        if isinstance(item.content, str):
            kind = "output_text" if item.role == "assistant" else "input_text"
            out["content"] = [{"type": kind, "text": item.content}]
        for part in out["content"]:
            if part["type"] == "output_text":
                part.setdefault("annotations", [])
    if item.type == "reasoning":
        out.setdefault("summary", [])
    return out
