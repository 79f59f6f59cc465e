"""Write stream events. Constant parts of a stream's chunks are encoded once, so a chunk costs one small dump."""

from __future__ import annotations

from typing import Any

import orjson

from thalweg.server.core.job import GenerationJob
from thalweg.server.core.serving import Serving

_BARE = b',"logprobs":null,"finish_reason":null}'


class ChunkWriter:
    """The events of one stream. object: "chat.completion.chunk" or "text_completion"."""

    def __init__(self, job: GenerationJob, serving: Serving, kind: str, include_usage: bool) -> None:
        head = {"id": job.id, "object": kind, "created": job.created, "model": job.model}
        if serving.fingerprint is not None:
            head["system_fingerprint"] = serving.fingerprint
        self._head = b"data: " + orjson.dumps(head)[:-1] + b',"choices":['
        self._tail = b'],"usage":null}\n\n' if include_usage else b"]}\n\n"
        self._content = b'"delta":{"content":' if kind == "chat.completion.chunk" else b'"text":'
        self._content_end = b"}" if kind == "chat.completion.chunk" else b""

    def text(self, index: int, text: str) -> bytes:
        """A chunk with text and nothing else: the common case."""
        return b"".join(
            (self._head, b'{"index":%d,' % index, self._content, orjson.dumps(text), self._content_end, _BARE, self._tail)
        )

    def choice(
        self, choice: dict[str, Any], usage: dict[str, Any] | None = None, prompt_token_ids: list[int] | None = None
    ) -> bytes:
        end = self._end(usage)
        if prompt_token_ids is not None:  # next to choices, as in a whole answer
            end = b'],"prompt_token_ids":' + orjson.dumps(prompt_token_ids) + end.removeprefix(b"]")
        return self._head + orjson.dumps(choice) + end

    def usage(self, usage: dict[str, Any], more: dict[str, Any]) -> bytes:
        """The last chunk of include_usage: no choices. more: its other fields."""
        return self._head + b'],"usage":' + orjson.dumps(usage) + (b"," + orjson.dumps(more)[1:] if more else b"}") + b"\n\n"

    def _end(self, usage: dict[str, Any] | None) -> bytes:
        return self._tail if usage is None else b'],"usage":' + orjson.dumps(usage) + b"}\n\n"
