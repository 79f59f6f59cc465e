"""A checkpoint's own response_template (transformers' chat_parsing) as a turn format, as far as its anchors are literal.

https://huggingface.co/docs/transformers/chat_response_parsing has the keys. Regular expressions are not run here: a
template that needs one gives no format, and the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thalweg.turns.format import Calls, JsonCalls, Reasoning, TurnFormat

REASONING = ("reasoning_content", "reasoning", "thinking")
"""Names of the reasoning field."""
CONTENT, CALLS = "content", "tool_calls"


class UnreadableError(ValueError):
    """A template gives no format. The message is the reason."""


def turn_of(template: Any) -> TurnFormat:
    """The format of a response_template. UnreadableError names the unsupported part."""
    if not isinstance(template, Mapping) or not isinstance(template.get("fields"), Mapping):
        raise UnreadableError("it has no fields")
    reasoning, calls, wrap = None, None, tuple[str, ...]()
    for name, entry in template["fields"].items():
        if not isinstance(entry, Mapping):
            raise UnreadableError(f"field {name!r} is no object")
        opens, closes = _anchors(name, entry, "open"), _anchors(name, entry, "close")
        if name in REASONING:
            if not opens or not closes:
                raise UnreadableError(f"field {name!r} needs open and close")
            reasoning = Reasoning(opens[0], closes[0], opens[1:])
        elif name == CALLS:
            calls = _calls(entry, opens, closes)
        elif name == CONTENT:
            wrap = (*opens, *closes)
        else:
            raise UnreadableError(f"field {name!r} is not known here")
    return TurnFormat(reasoning, calls, wrap, source="the checkpoint's response_template")


def _anchors(name: str, entry: Mapping[str, Any], key: str) -> tuple[str, ...]:
    if f"{key}_pattern" in entry:
        raise UnreadableError(f"field {name!r} has a regular expression, {key}_pattern")
    found = entry.get(key, ())
    found = (found,) if isinstance(found, str) else tuple(found)
    if not all(isinstance(f, str) and f for f in found):
        raise UnreadableError(f"field {name!r}: {key} must be text")
    return found


def _calls(entry: Mapping[str, Any], opens: tuple[str, ...], closes: tuple[str, ...]) -> Calls:
    if entry.get("content") != "json" or entry.get("content_args"):
        raise UnreadableError(f"field {CALLS!r} holds {entry.get('content', 'text')!r}, and only plain json is read")
    if not opens or len(closes) > 1:
        raise UnreadableError(f"field {CALLS!r} needs open, and at most one close")
    array = bool(entry.get("transform_each"))
    result = entry.get("transform")
    function = result.get("function") if isinstance(result, Mapping) else None
    names = function if isinstance(function, Mapping) else {"name": "{name}", "arguments": "{arguments}"}
    keys = [_key(names.get(part)) for part in ("name", "arguments")]
    body = JsonCalls((keys[0],), (keys[1],), array=array)
    return Calls("response_template", body, opens[0], closes[0] if closes else "", opens[1:])


def _key(placeholder: Any) -> str:
    """The member of the call's object that `{content.KEY}` or `{KEY}` names."""
    if isinstance(placeholder, str) and placeholder.startswith("{") and placeholder.endswith("}"):
        key = placeholder[1:-1].removeprefix("content.")
        if key and "." not in key:
            return key
    raise UnreadableError(f"field {CALLS!r}: its transform is not {{content.KEY}} for name and arguments")
