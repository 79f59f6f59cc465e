"""What a fleet must show, each claim a function that returns "" or why it does not hold.

The answers of a server without a fleet are the measure. The bundled model's answers are deterministic.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import httpx

from fleets.ends import end_servers
from fleets.fleet import MODEL, Fleet, Place

SECONDS = 60.0
"""Bound of a request."""
CHAT = [{"role": "user", "content": "Sort: pear, apple, plum, fig"}]
LONG = 600
"""Tokens of an answer that an engine is killed in."""
KILL_AT = 40
"""Parts of the answer before the kill."""
TALKS = 6
"""Conversations of a warm turn: a router that draws lots finds all of their replicas once in 64 times."""
BLOCK = 16


def _describe_tool(name: str, about: str, **properties: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {k: {"type": v} for k, v in properties.items()}, "required": [*properties]}
    return {"type": "function", "function": {"name": name, "description": about, "parameters": parameters}}


TOOLS = [
    _describe_tool("search_trains", "Find a train between two cities", origin="string", goal="string"),
    _describe_tool("order_item", "Buy things in a shop", thing="string", quantity="integer"),
]
TASKS = (
    ("How do I get from Porto to Dublin by train?", '{"departure": "9:40"}'),
    ("I need 4 shirts.", '{"price": 134}'),
)
"""Requests to the tools, and what they return."""


class Trial:
    """A fleet that runs, and a server without one."""

    def __init__(self, fleet: Fleet, place: Place, url: str, direct: str) -> None:
        self.fleet, self.place, self.url, self.direct = fleet, place, url, direct

    def show(self, claim: str) -> str:
        """Why the claim does not hold. "": it does."""
        try:
            return CLAIMS[claim](self)
        except (httpx.HTTPError, KeyError, IndexError, TypeError, ValueError) as e:
            return f"{type(e).__name__}: {e}"

    def ask(self, url: str, **fields: Any) -> dict[str, Any]:
        """The answer of a chat, or ValueError with the status and the body."""
        answer = httpx.post(f"{url}/v1/chat/completions", json=self._body(fields), timeout=SECONDS)
        if answer.status_code != 200:
            raise ValueError(f"status {answer.status_code}: {answer.text[:300]}")
        content: dict[str, Any] = answer.json()
        return content

    def stream(self, url: str, **fields: Any) -> Iterator[dict[str, Any]]:
        """The deltas of a streamed chat. ValueError if it ends without [DONE]."""
        body = {**self._body(fields), "stream": True}
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=SECONDS) as answer:
            if answer.status_code != 200:
                raise ValueError(f"status {answer.status_code}: {answer.read().decode()[:300]}")
            for line in answer.iter_lines():
                if line == "data: [DONE]":
                    return
                if line.startswith("data: "):
                    part = json.loads(line[6:])
                    if "error" in part:
                        raise ValueError(f"an error in the stream: {line[:300]}")
                    for choice in part.get("choices", ()):
                        yield choice["delta"]
        raise ValueError("the stream ended without [DONE]")

    def _body(self, fields: dict[str, Any]) -> dict[str, Any]:
        return self.fleet.request({"model": MODEL, "messages": CHAT, "temperature": 0, "max_tokens": 64, **fields})


def differ(got: Any, wanted: Any) -> str:
    return "" if got == wanted else f"{got!r:.300} instead of {wanted!r:.300}"


def chat(trial: Trial) -> str:
    """An answer is the server's, with its usage."""
    got, wanted = trial.ask(trial.url), trial.ask(trial.direct)
    return differ(_read(got), _read(wanted)) or differ(_count(got), _count(wanted))


def _count(answer: dict[str, Any]) -> tuple[int, int]:
    return answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]


def stream(trial: Trial) -> str:
    """The parts of a stream, joined, are the whole answer, and there are several. A busy machine joins parts of a short one."""
    fields = {"messages": [{"role": "user", "content": "Count from 1 to 300."}], "ignore_eos": True, "max_tokens": LONG // 2}
    wanted = trial.ask(trial.direct, **fields)["choices"][0]["message"]["content"]
    parts = [delta["content"] for delta in trial.stream(trial.url, **fields) if delta.get("content")]
    return differ("".join(parts), wanted) or ("" if len(parts) > 1 else "the answer came in one part")


def tools(trial: Trial) -> str:
    """Conversations with a tool call and its result are those with the server."""
    return differ(_loop(trial, trial.url), _loop(trial, trial.direct))


def _loop(trial: Trial, url: str) -> list[Any]:
    """Calls and texts in turn. The model decides itself to call: constraints of required calls differ between fleets."""
    answers: list[Any] = []
    for request, result in TASKS:
        messages: list[dict[str, Any]] = [{"role": "user", "content": request}]
        answer = trial.ask(url, messages=messages, tools=TOOLS)
        answers.append(_read(answer))
        calls = answer["choices"][0]["message"].get("tool_calls") or []
        if len(calls) != 1:
            raise ValueError(f"{len(calls)} calls of tools: {answers[-1]!r}")
        messages.append({"role": "assistant", "content": None, "tool_calls": [{**calls[0], "id": "call-1"}]})
        messages.append({"role": "tool", "tool_call_id": "call-1", "content": result})
        answers.append(_read(trial.ask(url, messages=messages, tools=TOOLS)))
    return answers


def _read(answer: dict[str, Any]) -> Any:
    """The text, or the calls without their ids."""
    message = answer["choices"][0]["message"]
    calls = [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in message.get("tool_calls") or ()]
    return calls or message["content"]


def kill_engine(trial: Trial) -> str:
    """`kill -9` of every engine in mid-stream, those in reserve too: the text is that of an undisturbed answer."""
    fields = {"messages": [{"role": "user", "content": "Count from 1 to 300."}], "ignore_eos": True, "max_tokens": LONG}
    wanted = trial.ask(trial.direct, **fields)["choices"][0]["message"]["content"]
    text, longest, last, parts, killed = "", 0.0, time.monotonic(), 0, 0
    for delta in trial.stream(trial.url, **fields):
        now = time.monotonic()
        longest, last = max(longest, now - last), now
        text += delta.get("content") or ""
        parts += 1
        if parts == KILL_AT:
            for pid in trial.fleet.find_engines(trial.place):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    killed += 1
    if not killed:
        return f"no engine was killed; the answer had {parts} parts"
    return differ(text, wanted) or ("" if longest < SECONDS / 2 else f"the stream stood still for {longest:.1f} s")


def warm_turn(trial: Trial) -> str:
    """The second turns of conversations are computed where the first were."""
    return _turn_twice(trial, "a", lambda: None)


def warm_again(trial: Trial) -> str:
    """The same, with a new subscriber between the turns: it has the contents of the caches from events only."""
    return _turn_twice(trial, "b", trial.fleet.restart_front)


def _turn_twice(trial: Trial, label: str, between: Callable[[], None]) -> str:
    def begin(i: int) -> tuple[list[dict[str, str]], int]:
        words = f"{label}{i} Remember the list: " + " ".join(f"{label}{i}{j}" for j in range(40))
        messages = [{"role": "user", "content": words}]
        answer = trial.ask(trial.fleet.find_first(trial.place, trial.url, i), messages=messages, max_tokens=24)
        messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"] or "Yes."})
        return messages, answer["usage"]["prompt_tokens"]

    with ThreadPoolExecutor(TALKS) as pool:  # all at once, so that a router divides them
        talks = list(pool.map(begin, range(TALKS)))
    time.sleep(1)  # events are a matter of milliseconds, and a router may read them in its own time
    between()
    cold = []
    for i, (messages, known) in enumerate(talks):
        again = [*messages, {"role": "user", "content": "Which was the last one?"}]
        usage = trial.ask(trial.url, messages=again, max_tokens=8)["usage"]
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        if cached < known - 2 * BLOCK:
            cold.append(f"{i}: {cached} of {known}")
    return f"cold second turns: {', '.join(cold)}" if cold else ""


CLAIMS: dict[str, Callable[[Trial], str]] = {
    "chat": chat, "stream": stream, "tools": tools, "kill -9": kill_engine, "warm": warm_turn, "warm again": warm_again,
    "servers": end_servers,
}  # fmt: skip
