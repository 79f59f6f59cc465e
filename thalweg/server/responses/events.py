"""A turn as output items: the events of a stream, and the items of a whole answer put together as they pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from thalweg.server.responses.items import encode_thought
from thalweg.server.responses.references import item_id
from thalweg.server.responses.tools import Tools, input_of
from thalweg.turns.events import CallArguments, CallStart, Content, Event, Thought

Json = dict[str, Any]
TEXTS = {"message": "output_text", "reasoning": "reasoning_text"}
"""Types of the parts that items of text have."""


class ResponseItemWriter:
    """The items of one answer. Indexes are dense, one item is open at a time, and none is blank.

    Text of only white space makes no item."""

    def __init__(self, tools: Tools, response: str, encoding: bool = False) -> None:
        """response: its id. encoding: reasoning items carry their text in `encrypted_content` too."""
        self._tools, self._response, self._encoding = tools, response, encoding
        self.items: list[Json] = []
        """As they are at the end. The last one may be open."""
        self._open = ""
        """The type of the open item."""
        self._pieces: list[str] = []
        self._held: list[str] = []
        self._holds = ""
        """White space that may begin an item of this type."""
        self.thought: list[str] = []
        """All reasoning, in pieces."""
        self._scores: list[Json] = []
        """Log-probabilities of tokens without text yet."""
        self._all_scores: list[Json] = []

    def push(self, events: Iterable[Event], scores: Iterable[Json] = ()) -> Iterator[Json]:
        """Events of the stream, without their numbers. scores: log-probabilities of the tokens behind them, where all of
        the answer is text."""
        self._scores.extend(scores)
        for event in events:
            match event:
                case Content(text):
                    yield from self._piece("message", text)
                case Thought(text):
                    self.thought.append(text)
                    yield from self._piece("reasoning", text)
                case CallStart(_, id, name):
                    self._hold("")
                    yield from self._call(id, name)
                case CallArguments(_, text):
                    self._pieces.append(text)
                    if self._open == "function_call":
                        yield self._at("response.function_call_arguments.delta", delta=text)

    def finish(self, status: str = "completed") -> Iterator[Json]:
        """End the open item. status: completed | incomplete."""
        if not self._open:
            return
        kind, text, item = self._open, "".join(self._pieces), self.items[-1]
        match kind:
            case "message" | "reasoning":
                part = _part(kind, text)
                if kind == "message":
                    self._all_scores += self._scores
                    part["logprobs"], self._all_scores, self._scores = self._all_scores, [], []
                item["content"] = [part]
                name = f"response.{TEXTS[kind]}.done"
                yield self._at(name, content_index=0, text=text, **{k: v for k, v in part.items() if k == "logprobs"})
                yield self._at("response.content_part.done", content_index=0, part=item["content"][0])
                if kind == "reasoning" and self._encoding:
                    item["encrypted_content"] = encode_thought(text)
            case "function_call":
                item["arguments"] = text
                yield self._at("response.function_call_arguments.done", arguments=text, name=item["name"])
            case "custom_tool_call":
                item["input"] = text = input_of(text)
                yield self._at("response.custom_tool_call_input.delta", delta=text)
                yield self._at("response.custom_tool_call_input.done", input=text)
        item["status"] = status
        yield {"type": "response.output_item.done", "output_index": len(self.items) - 1, "item": item}
        self._open = ""

    def _piece(self, kind: str, text: str) -> Iterator[Json]:
        if self._open != kind:
            if self._holds != kind:
                self._hold(kind)
            self._held.append(text)
            if not text or text.isspace():
                return
            text = "".join(self._held)
            item: Json = {"id": self._id(kind), "type": kind, "status": "in_progress", "content": []}
            more: Json = {"role": "assistant"} if kind == "message" else {"summary": []}
            item |= more
            yield from self._begin(item)
            yield self._at("response.content_part.added", content_index=0, part=_part(kind, ""))
        self._hold("")
        self._pieces.append(text)
        scores: Json = {}
        if kind == "message":
            scores["logprobs"], self._scores = self._scores, []
            self._all_scores += scores["logprobs"]
        yield self._at(f"response.{TEXTS[kind]}.delta", content_index=0, delta=text, **scores)

    def _call(self, call_id: str, name: str) -> Iterator[Json]:
        known = self._tools.of(name)
        kind, field = ("custom_tool_call", "input") if known.kind == "custom" else ("function_call", "arguments")
        item: Json = {
            "id": self._id(kind),
            "type": kind,
            "status": "in_progress",
            "call_id": call_id,
            "name": known.name,
            field: "",
        }
        if known.namespace is not None:
            item["namespace"] = known.namespace
        yield from self._begin(item)

    def _id(self, kind: str) -> str:
        """Of the next item."""
        return item_id(self._response, kind, len(self.items))

    def _hold(self, kind: str) -> None:
        self._holds, self._held = kind, []

    def _begin(self, item: Json) -> Iterator[Json]:
        yield from self.finish()
        self.items.append(item)
        self._open, self._pieces = item["type"], []
        yield {"type": "response.output_item.added", "output_index": len(self.items) - 1, "item": dict(item)}

    def _at(self, name: str, /, **fields: Any) -> Json:
        return {"type": name, "item_id": self.items[-1]["id"], "output_index": len(self.items) - 1, **fields}


def _part(kind: str, text: str) -> Json:
    part: Json = {"type": TEXTS[kind], "text": text}
    return part | {"annotations": [], "logprobs": []} if kind == "message" else part
