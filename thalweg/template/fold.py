"""System messages for templates that refuse them where they stand: told by the user's turn beside them.

Clients put system messages into the middle of a conversation (Claude Code does). Many templates take one as the first alone,
or none at all, or drop it without a word. Roles alternate as before, so that templates which insist on that are content.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

OPEN, CLOSE = "<system>\n", "\n</system>"
"""Around what was said in the middle: the model must see that it is not the user who says it."""
Messages = list[dict[str, Any]]


def fold_system_messages(messages: Messages) -> Iterator[Messages]:
    """Ways to say the same with fewer system messages, the nearest first: those after the first message folded, then all.
    Contents are lists of parts, as `normalise` gives them in the form "openai"."""
    middle = [m for i, m in enumerate(messages) if i and m["role"] == "system"]
    if middle:
        messages = _without(messages, 1)
        yield messages
    if messages[0]["role"] == "system":
        yield _without(messages, 0)


def shows(text: str, messages: Messages) -> bool:
    """Is there something in a rendering of each system message? Always yes if none is in the middle: some templates drop those,
    or the first for a later one, without a word."""
    said = [part["text"] for m in messages if m["role"] == "system" for part in m["content"]]
    if not any(i and m["role"] == "system" for i, m in enumerate(messages)):
        return True
    return all(words.strip().partition("\n")[0].strip() in text for words in said)


def _without(messages: Messages, first: int) -> Messages:
    """No system message from the place `first` on. A text goes before the user's next turn if that follows, else behind the
    user's last, and has a turn of its own between others."""
    out: Messages = list(messages[:first])
    waiting: list[Any] = []
    for at, message in enumerate(messages[first:], first):
        if message["role"] == "system":
            waiting += _system_parts(message["content"], at > 0)
            continue
        if waiting and message["role"] == "user":
            message = {**message, "content": [*waiting, *message["content"]]}
            waiting = []
        elif waiting:
            _append(out, waiting)
            waiting = []
        out.append(message)
    if waiting:
        _append(out, waiting)
    return out


def _append(out: Messages, parts: list[Any]) -> None:
    if out and out[-1]["role"] == "user":
        out[-1] = {**out[-1], "content": [*out[-1]["content"], *parts]}
    else:
        out.append({"role": "user", "content": parts})


def _system_parts(content: list[Any], marked: bool) -> list[Any]:
    """marked: it stood in the middle. Parts are joined by line breaks, and a system text is followed by an empty line."""
    text = "\n".join(part["text"] for part in content)
    return [{"type": "text", "text": OPEN + text + CLOSE if marked else text + "\n"}]
