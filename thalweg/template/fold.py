"""Moves system messages into adjacent users' turns, for templates that reject system messages at their position.

Clients put system messages into the middle of a conversation (Claude Code does). Many templates accept only a first one, or
none, or drop others silently. Roles still alternate, as some templates require.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

OPEN, CLOSE = "<system>\n", "\n</system>"
"""Delimiters of system messages from the middle: the model must see that the user did not write them."""
Messages = list[dict[str, Any]]


def fold_system_messages(messages: Messages) -> Iterator[Messages]:
    """Equivalent conversations with fewer system messages, the closest first: with those after the first message folded, then
    with all folded.

    Contents are lists of parts, in the form "openai" of `normalise`."""
    middle = [m for i, m in enumerate(messages) if i and m["role"] == "system"]
    if middle:
        messages = _without(messages, 1)
        yield messages
    if messages[0]["role"] == "system":
        yield _without(messages, 0)


def shows(text: str, messages: Messages) -> bool:
    """Does a rendering contain the beginning of each system message? True if none is in the middle. Some templates silently
    drop those in the middle, or the first one for a later one."""
    texts = [part["text"] for m in messages if m["role"] == "system" for part in m["content"]]
    if not any(i and m["role"] == "system" for i, m in enumerate(messages)):
        return True
    return all(words.strip().partition("\n")[0].strip() in text for words in texts)


def _without(messages: Messages, first: int) -> Messages:
    """The conversation without system messages from index `first` on. A text goes before the user's next turn if that follows,
    else after the user's last one. Between other turns it becomes a user's turn."""
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
    """A system message as parts of a user's turn. marked: it was in the middle. Parts are joined by line breaks, and an
    unmarked text is followed by an empty line."""
    text = "\n".join(part["text"] for part in content)
    return [{"type": "text", "text": OPEN + text + CLOSE if marked else text + "\n"}]
