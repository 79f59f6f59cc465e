"""A turn as blocks: the events of a stream, and the content of a whole answer put together from them."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

import orjson

from thalweg.turns.events import CallArguments, CallStart, Content, Event, Thought

EMPTY: dict[str, dict[str, Any]] = {
    "text": {"type": "text", "text": ""},
    "thinking": {"type": "thinking", "thinking": "", "signature": ""},
}
Json = dict[str, Any]


class ContentBlockWriter:
    """Pieces of a turn as content_block events: indexes are dense, one block is open at a time, and none is blank.

    Text of only white space makes no block, because clients may not send one back."""

    def __init__(self) -> None:
        self._index = -1
        self._open = ""
        """The type of the open block."""
        self._held: list[str] = []
        self._holds = ""
        """White space that may begin a block of this type."""
        self._digest = hashlib.sha256()

    def push(self, events: Iterable[Event]) -> Iterator[Json]:
        for event in events:
            match event:
                case Content(text):
                    yield from self._piece("text", text)
                case Thought(text):
                    yield from self._piece("thinking", text)
                case CallStart(_, id, name):
                    self._hold("")
                    yield from self._begin("tool_use", {"type": "tool_use", "id": id, "name": name, "input": {}})
                case CallArguments(_, text):
                    yield self._delta({"type": "input_json_delta", "partial_json": text})

    def finish(self) -> Iterator[Json]:
        """End the open block. The signature of thinking is a digest of its text: it proves nothing."""
        if self._open == "thinking":
            signature = base64.b64encode(self._digest.digest()).decode()
            yield self._delta({"type": "signature_delta", "signature": signature})
        if self._open:
            yield {"type": "content_block_stop", "index": self._index}
        self._open = ""

    def _piece(self, kind: str, text: str) -> Iterator[Json]:
        if self._open != kind:
            if self._holds != kind:
                self._hold(kind)
            self._held.append(text)
            if not text or text.isspace():
                return
            text = "".join(self._held)
            yield from self._begin(kind, EMPTY[kind])
        self._hold("")
        if kind == "thinking":
            self._digest.update(text.encode(errors="surrogatepass"))
        yield self._delta({"type": f"{kind}_delta", kind: text})

    def _hold(self, kind: str) -> None:
        self._holds, self._held = kind, []

    def _begin(self, kind: str, block: Json) -> Iterator[Json]:
        yield from self.finish()
        self._index, self._open, self._digest = self._index + 1, kind, hashlib.sha256()
        yield {"type": "content_block_start", "index": self._index, "content_block": block}

    def _delta(self, delta: Json) -> Json:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}


def content_of(events: Iterable[Json]) -> list[Json]:
    """The blocks that a client puts together from these events. Arguments that were cut off are an empty input."""
    blocks: list[Json] = []
    pieces: list[str] = []
    for event in events:
        match event["type"]:
            case "content_block_start":
                blocks.append(dict(event["content_block"]))
                pieces = []
            case "content_block_delta":
                delta = event["delta"]
                if delta["type"] == "signature_delta":
                    blocks[-1]["signature"] = delta["signature"]
                else:
                    pieces.append(
                        delta[delta["type"].removesuffix("_delta") if "partial_json" not in delta else "partial_json"]
                    )
            case "content_block_stop":
                kind = blocks[-1]["type"]
                if kind == "tool_use":
                    blocks[-1]["input"] = _input("".join(pieces))
                else:
                    blocks[-1][kind] = "".join(pieces)
    return blocks


def _input(text: str) -> Json:
    try:
        read = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    return read if isinstance(read, dict) else {}
