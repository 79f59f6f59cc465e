"""A chat with a running OpenAI-compatible server, over the standard library's HTTP client."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from thalweg.errors import RequestError, ThalwegError
from thalweg.turns.events import CallArguments, CallStart, Content, Event, Message, Thought

TIMEOUT = 600.0


class Remote:
    """`url`: as common.base_address gives it."""

    def __init__(self, url: str, key: str | None, model: str | None, sampling: dict[str, Any]) -> None:
        self._url, self._key, self.sampling = url, key, sampling
        self._model = model or self._first_model()
        self.tools: list[dict[str, Any]] | None = None
        """Functions that the model may call, in OpenAI's form."""

    def answer(self, messages: list[dict[str, Any]], show: Callable[[Iterable[Event]], None]) -> Message:
        """The answer of a conversation. Its pieces also go to `show` when they arrive."""
        body = {"model": self._model, "messages": messages, "stream": True, **self.sampling}
        if self.tools:
            body["tools"] = self.tools
        message = Message()
        for choice in self._choices("/chat/completions", body):
            events = list(_events_of(choice.get("delta") or {}))
            message.add(events)
            show(events)
        return message

    def complete(self, text: str, write: Callable[[str], object]) -> str:
        """The completion of a text, a piece at a time."""
        body = {"model": self._model, "prompt": text, "stream": True, **self.sampling}
        pieces = []
        for choice in self._choices("/completions", body):
            pieces.append(choice.get("text") or "")
            write(pieces[-1])
        return "".join(pieces)

    def _choices(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        with self._open(path, body) as response:
            for event in _events(response):
                if "error" in event:
                    raise ThalwegError(f"the server says: {event['error'].get('message')}")
                yield from event.get("choices", ())

    def _first_model(self) -> str:
        with self._open("/models", None) as response:
            return str(json.load(response)["data"][0]["id"])

    def _open(self, path: str, body: dict[str, Any] | None) -> Any:
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {self._key}"} if self._key else {})
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, headers)
        try:
            return urllib.request.urlopen(request, timeout=TIMEOUT)
        except urllib.error.HTTPError as e:
            if e.code in (400, 413, 422):  # of this request: the next may be right
                raise RequestError(f"the server says: {_message(e)}") from None
            raise ThalwegError(f"{self._url}: the server answers {e.code}: {_message(e)}") from None
        except (urllib.error.URLError, OSError) as e:
            raise ThalwegError(f"--url: cannot reach {self._url}: {getattr(e, 'reason', e)}; is the server running?") from None


def _message(error: urllib.error.HTTPError) -> str:
    text = error.read(4096).decode(errors="replace")
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return text.strip() or str(error.reason)


def _events(lines: Any) -> Iterator[dict[str, Any]]:
    for line in lines:
        if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
            yield json.loads(line[6:])


def _events_of(delta: dict[str, Any]) -> Iterator[Event]:
    """A piece of a streamed message."""
    if thought := delta.get("reasoning") or delta.get("reasoning_content"):
        yield Thought(thought)
    if text := delta.get("content"):
        yield Content(text)
    for call in delta.get("tool_calls") or ():
        function, index = call.get("function") or {}, call.get("index", 0)
        if function.get("name"):
            yield CallStart(index, call.get("id") or "", function["name"])
        if function.get("arguments"):
            yield CallArguments(index, function["arguments"])
