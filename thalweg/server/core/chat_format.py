"""Tools and reasoning in chat completions: what a request asks of them, and the model's turn as messages and deltas."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from thalweg.outputs import CompletionOutput
from thalweg.params import Aside, SamplingParams
from thalweg.server.core.constraint import Constraint
from thalweg.server.core.request import ChatRequest
from thalweg.server.core.serving import Serving
from thalweg.server.errors import ApiError
from thalweg.template.chat import Chat
from thalweg.turns.aside import aside_of
from thalweg.turns.bind import Bound, bind
from thalweg.turns.choose import choose, describe
from thalweg.turns.events import CallArguments, CallBegun, Content, Event, Message, Thought
from thalweg.turns.format import Turn
from thalweg.turns.grammar import beginning_of_calls
from thalweg.turns.held import Held
from thalweg.turns.reader import Reader

log = logging.getLogger(__name__)
NO_FORMAT = (
    "tools: nothing says how this model calls tools (its chat template is of no known format); "
    "start the server with --tool-call-parser, or leave out tools"
)
NOT_AUTO = "tool_choice: 'auto' is switched off (--no-enable-auto-tool-choice); send tool_choice='none'"


class Turns:
    """How the served model's turns are read."""

    def __init__(self, serving: Serving, chat: Chat | None) -> None:
        """chat: with the chat template in use. ConfigError if a flag names no format."""
        settings, tokenizer = serving.settings, serving.engine.tokenizer
        turn = plain = Turn()
        if tokenizer is not None:
            templates = (None, None) if chat is None else (chat.templates.pick(tools=True), chat.templates.pick(tools=False))
            named = settings.tool_call_parser, settings.reasoning_parser
            made = {
                t: choose(*named, t, tokenizer.response_template, None if chat is None else chat.writer(t))
                for t in dict.fromkeys(templates)
            }
            turn, plain = made[templates[0]], made[templates[1]]
            for each in made.values():
                log.info("%s", describe(each))
        self._auto, self._level = settings.enable_auto_tool_choice, settings.tool_strict_level
        self._with_calls, self._without = bind(turn, tokenizer), bind(plain.without_calls(), tokenizer)
        if self._level != "off" and beginning_of_calls(self._with_calls) is None:
            log.warning("--tool-strict-level has no effect: no token of this model begins a call, and nothing else")

    def bound(self, request: ChatRequest) -> Bound | None:
        """What reads the answer. None: it is content as it stands. ApiError if the tools cannot be had as asked."""
        if request.choice == "none":
            turn = self._without.turn
            plain = turn.reasoning is None and turn.headers is None and not turn.wraps
            return None if plain else self._without
        if self._with_calls.turn.calls is None:
            raise ApiError(NO_FORMAT, "tools")
        if request.choice == "auto" and not self._auto:
            raise ApiError(NOT_AUTO, "tool_choice")
        return self._with_calls

    def constrain(self, request: ChatRequest, bound: Bound | None, params: SamplingParams, prompt: str) -> Held:
        """Constrain the turn to what the request asks for. What of it is held, for its reader. RequestError or ApiError, naming
        the field, where that cannot be."""
        if bound is None:
            return Held.NOTHING
        aside = aside_of(bound, prompt) if params.stop else None
        if aside is not None:
            opens, close, inside = aside
            params.stop_aside = Aside(opens=opens, close=close, inside=inside)
        return Constraint(request, bound, prompt, self._level).hold(params)


class Answer:
    """The choices of one request as their turns are read. Without a format they are content."""

    def __init__(self, bound: Bound | None, request: ChatRequest, prompt: str, held: Held = Held.NOTHING) -> None:
        """held: what of the turn a grammar decides."""
        self._bound, self._request, self._prompt, self._held = bound, request, prompt, held
        self._schemas = {t.function.name: t.function.parameters or {} for t in request.tools or ()}
        self._readers: dict[int, Reader] = {}
        self._one = request.parallel_tool_calls is False
        self._called: set[int] = set()

    @property
    def plain(self) -> bool:
        return self._bound is None

    def message(self, choice: CompletionOutput, echo: str) -> dict[str, Any]:
        """Fields of a whole choice's message, beside its role."""
        if self._bound is None:
            return {"content": echo + choice.text, "refusal": None}
        said = Message()
        said.add(self._events(choice, True))
        out: dict[str, Any] = {"content": (echo + said.content) or None, "refusal": None}
        if not said.calls and out["content"] is None:
            out["content"] = ""
        if said.reasoning:
            out |= _reasoning(said.reasoning)
        if said.calls:
            out["tool_calls"] = [
                {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}} for c in said.calls
            ]
        return out

    def deltas(self, choice: CompletionOutput) -> list[dict[str, Any]]:
        """What is new of a choice, piece by piece."""
        events = self._events(choice, choice.finish_reason is not None)
        return [_delta(e) for e in events]

    def events(self, choice: CompletionOutput) -> list[Event]:
        """What is new of a choice, for dialects with pieces of their own."""
        if self._bound is None:
            return [Content(choice.text)] if choice.text else []
        return self._events(choice, choice.finish_reason is not None)

    def called(self, choice: CompletionOutput) -> bool:
        """Has the choice begun a call?"""
        return choice.index in self._called

    def finish_reason(self, choice: CompletionOutput) -> str | None:
        """tool_calls only where there are some, and the turn ended by itself. A call that was named ends with stop."""
        called = choice.finish_reason == "stop" and choice.index in self._called
        return "tool_calls" if called and self._request.choice in ("auto", "required") else choice.finish_reason

    def _events(self, choice: CompletionOutput, ended: bool) -> list[Event]:
        assert self._bound is not None
        index, cut = choice.index, choice.finish_reason != "stop" or isinstance(choice.stop_reason, str)
        reader = self._readers.get(index)
        if reader is None:
            reader = self._readers[index] = Reader(self._bound, self._prompt, self._schemas, self._held)
        events = reader.push(choice.text) + (reader.finish(cut) if ended else [])
        if any(isinstance(e, CallBegun) for e in events):
            self._called.add(index)
        return [e for e in events if self._wanted(e)]

    def _wanted(self, event: Event) -> bool:
        match event:
            case Thought():
                return self._request.include_reasoning is not False
            case CallBegun(index) | CallArguments(index):
                return not (self._one and index)
        return True


def _delta(event: Event) -> dict[str, Any]:
    match event:
        case Content(text):
            return {"content": text}
        case Thought(text):
            return _reasoning(text)
        case CallBegun(index, id, name):
            call = {"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": ""}}
            return {"tool_calls": [call]}
        case CallArguments(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}


def _reasoning(text: str) -> dict[str, str]:
    """Under both names that clients read."""
    return {"reasoning": text, "reasoning_content": text}


def history(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message for templates, its reasoning under both names."""
    thought = message.get("reasoning") or message.get("reasoning_content")
    return {**message, **_reasoning(thought)} if thought else dict(message)
