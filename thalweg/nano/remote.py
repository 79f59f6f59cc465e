"""Answers of a running OpenAI-compatible server, over the standard library's HTTP client."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from thalweg.errors import ThalwegError
from thalweg.nano.example import Example, call_text

TIMEOUT = 600.0
AT_ONCE = 16


class ServerRefusedError(ThalwegError):
    """The server rejected the request with status 400."""


class RemoteModel:
    """A model behind an HTTP API. url: the base address for OpenAI clients (http://localhost:8000/v1), checked, without a slash
    at its end."""

    def __init__(self, url: str, key: str | None, model: str | None, max_tokens: int) -> None:
        self._url, self._key, self._max_tokens = url, key, max_tokens
        self.model = model or str(self._call("/models", None)["data"][0]["id"])

    def answer(self, examples: Sequence[Example]) -> list[str]:
        """The server's greedy answers to the examples, in order."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return list(pool.map(self._one, examples))

    def _one(self, example: Example) -> str:
        body: dict[str, Any] = {
            "model": self.model,
            "messages": list(example.messages),
            "temperature": 0,
            "max_tokens": self._max_tokens,
        }
        if example.tools:
            body["tools"] = list(example.tools)
        try:
            reply = self._call("/chat/completions", body)
        except ServerRefusedError:
            if not example.tools:
                raise
            # A server that parses no tool calls may still show the model its tools, and send the call as text.
            reply = self._call("/chat/completions", {**body, "tool_choice": "none"})
        return message_text(reply["choices"][0]["message"])

    def _call(self, path: str, body: dict[str, Any] | None) -> Any:
        """The answer's JSON. ServerRefusedError for status 400, ThalwegError for any other fault."""
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {self._key}"} if self._key else {})
        data = None if body is None else json.dumps(body).encode()
        try:
            with urllib.request.urlopen(urllib.request.Request(self._url + path, data, headers), timeout=TIMEOUT) as response:
                return json.load(response)
        except urllib.error.HTTPError as e:
            kind = ServerRefusedError if e.code == 400 else ThalwegError
            raise kind(f"{self._url}: the server answers {e.code}: {e.read(2000).decode(errors='replace')}") from None
        except (urllib.error.URLError, OSError) as e:
            raise ThalwegError(
                f"--base-url: cannot reach {self._url}: {getattr(e, 'reason', e)}; is the server running?"
            ) from None


def message_text(message: dict[str, Any]) -> str:
    """The model's text, with tool calls parsed by the server written as text again."""
    parts = [message.get("content") or ""]
    for call in message.get("tool_calls") or ():
        function = call["function"]
        try:
            arguments = json.loads(function["arguments"])
        except ValueError:
            arguments = function["arguments"]
        parts.append(call_text(function["name"], arguments))
    return "\n".join(p for p in parts if p)
