"""A turn as this API's events, and the message that a client puts together from them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from thalweg.turns.events import CallArguments, CallStart, Content, Event, Thought

Json = dict[str, Any]


class CohereContentWriter:
    """Parts of the content and calls, each with a separate index. One is open at a time. Only white space makes no part."""

    def __init__(self) -> None:
        self.content: list[Json] = []
        self.calls: list[Json] = []
        self._open = ""
        """text | thinking | call | "" """
        self._held = ""
        self._holds = ""
        """White space that may begin a part of this type."""

    def push(self, events: Iterable[Event]) -> Iterator[Json]:
        for event in events:
            match event:
                case Content(text):
                    yield from self._text("text", text)
                case Thought(text):
                    yield from self._text("thinking", text)
                case CallStart(_, id, name):
                    yield from self.finish()
                    self._open, self._held = "call", ""
                    self.calls.append({"id": id, "type": "function", "function": {"name": name, "arguments": ""}})
                    call = {**self.calls[-1], "function": dict(self.calls[-1]["function"])}
                    yield _event("tool-call-start", len(self.calls) - 1, {"tool_calls": call})
                case CallArguments(_, text):
                    self.calls[-1]["function"]["arguments"] += text
                    message = {"tool_calls": {"function": {"arguments": text}}}
                    yield _event("tool-call-delta", len(self.calls) - 1, message)

    def finish(self) -> Iterator[Json]:
        if self._open == "call":
            yield {"type": "tool-call-end", "index": len(self.calls) - 1}
        elif self._open:
            yield {"type": "content-end", "index": len(self.content) - 1}
        self._open = ""

    def _text(self, kind: str, text: str) -> Iterator[Json]:
        if self._open != kind:
            self._held = (self._held if self._holds == kind else "") + text
            self._holds = kind
            if not text or text.isspace():
                return
            text, self._held = self._held, ""
            yield from self.finish()
            self._open = kind
            self.content.append({"type": kind, kind: ""})
            yield _event("content-start", len(self.content) - 1, {"content": {"type": kind, kind: ""}})
        self.content[-1][kind] += text
        yield _event("content-delta", len(self.content) - 1, {"content": {kind: text}})


def _event(kind: str, index: int, message: Json) -> Json:
    return {"type": kind, "index": index, "delta": {"message": message}}
