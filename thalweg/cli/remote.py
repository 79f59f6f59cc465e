"""A chat with a running OpenAI-compatible server, over the standard library's HTTP client."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

from thalweg.errors import ThalwegError

TIMEOUT = 600.0


class Remote:
    """`url`: as common.base_address gives it."""

    def __init__(self, url: str, key: str | None, model: str | None, sampling: dict[str, Any]) -> None:
        self._url, self._key, self._sampling = url, key, sampling
        self._model = model or self._first_model()

    def answer(self, messages: list[dict[str, str]], write: Callable[[str], object]) -> str:
        body = {"model": self._model, "messages": messages, "stream": True, **self._sampling}
        pieces = []
        with self._open("/chat/completions", body) as response:
            for event in _events(response):
                if "error" in event:
                    raise ThalwegError(f"the server says: {event['error'].get('message')}")
                for choice in event.get("choices", ()):
                    text = choice.get("delta", {}).get("content") or ""
                    pieces.append(text)
                    write(text)
        return "".join(pieces)

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
