"""Examples, their splits, and the test for correct answers."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Message = dict[str, Any]
Check = Literal["text", "json", "call"]

SPLITS = ("train", "validation", "test")
"""Training uses "train", and its schedule "validation". The published accuracy is for "test"."""
_PARTS = 20
_CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Example:
    """A conversation that ends with a user's or tool's turn, and the correct answer.

    key: the content, without the wording. It decides the split. check: "text" (same text, outer blanks aside), "json"
    (same JSON value) or "call" (the same tool calls and nothing else)."""

    task: str
    key: str
    messages: tuple[Message, ...]
    answer: str
    tools: tuple[dict[str, Any], ...] = ()
    check: Check = "text"


def split_of(task: str, key: str) -> str:
    """The split of a content: one in twenty is "test", and one in twenty "validation"."""
    digest = hashlib.blake2b(f"{task}\n{key}".encode(), digest_size=8).digest()
    part = int.from_bytes(digest, "little") % _PARTS
    return "test" if part == 0 else "validation" if part == 1 else "train"


def judge(example: Example, text: str) -> bool:
    """Is `text` the example's answer?"""
    text = text.strip()
    if example.check == "json":
        return _same_json(text, example.answer)
    if example.check == "call":
        return _calls(text) is not None and _calls(text) == _calls(example.answer)
    return text == example.answer


def call_text(name: str, arguments: Mapping[str, Any]) -> str:
    """A tool call in the Hermes format."""
    content = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{content}\n</tool_call>"


def _same_json(a: str, b: str) -> bool:
    try:
        return bool(_add_types(json.loads(a)) == _add_types(json.loads(b)))
    except (ValueError, RecursionError):
        return False


def _calls(text: str) -> list[Any] | None:
    """The calls in a text that contains nothing else. None: it contains other text."""
    found = _CALL.findall(text)
    if not found or _CALL.sub("", text).strip():
        return None
    try:
        return [_add_types(json.loads(c)) for c in found]
    except (ValueError, RecursionError):
        return None


def _add_types(value: Any) -> Any:
    """JSON values with their types, so that true differs from 1 and 2.0 from 2. Members have no order."""
    if isinstance(value, dict):
        return {k: _add_types(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_add_types(v) for v in value]
    return type(value).__name__, value
