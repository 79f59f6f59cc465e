"""The served model's format of reasoning and tool calls, applied to a request."""

from __future__ import annotations

import logging

from thalweg.params import ReasoningDelimiters, SamplingParams
from thalweg.server.core.constraint import Constraint
from thalweg.server.core.request import ChatRequest
from thalweg.server.core.serving import Serving
from thalweg.server.errors import ApiError
from thalweg.template.chat import Chat
from thalweg.turns.bind import BoundTurnFormat, bind
from thalweg.turns.choose import choose, describe
from thalweg.turns.format import TurnFormat
from thalweg.turns.grammar import beginning_of_calls
from thalweg.turns.grammar_scope import GrammarScope
from thalweg.turns.reasoning_delimiters import aside_of

log = logging.getLogger(__name__)
NO_FORMAT = (
    "tools: nothing says how this model calls tools (its chat template is of no known format); "
    "start the server with --tool-call-parser, or leave out tools"
)
NOT_AUTO = "tool_choice: 'auto' is switched off (--no-enable-auto-tool-choice); send tool_choice='none'"


class ChatFormat:
    """The formats of the served model's turns: with tools in the prompt, and without."""

    def __init__(self, serving: Serving, chat: Chat | None) -> None:
        """chat: with the chat template in use. ConfigError if a flag names no format."""
        settings, tokenizer = serving.settings, serving.engine.tokenizer
        turn = plain = TurnFormat()
        if tokenizer is not None:
            templates = (None, None) if chat is None else (chat.templates.pick(tools=True), chat.templates.pick(tools=False))
            named = settings.tool_call_parser, settings.reasoning_parser
            result = {
                t: choose(*named, t, tokenizer.response_template, None if chat is None else chat.writer(t))
                for t in dict.fromkeys(templates)
            }
            turn, plain = result[templates[0]], result[templates[1]]
            for each in result.values():
                log.info("%s", describe(each))
        self._auto, self._level = settings.enable_auto_tool_choice, settings.tool_strict_level
        self._with_calls, self._without = bind(turn, tokenizer), bind(plain.without_calls(), tokenizer)
        if self._level != "off" and beginning_of_calls(self._with_calls) is None:
            log.warning("--tool-strict-level has no effect: no token of this model begins a call, and nothing else")

    def select(self, request: ChatRequest) -> BoundTurnFormat | None:
        """The parser of the answer. None: all text is content. ApiError if the tools cannot be used as requested."""
        if request.choice == "none":
            turn = self._without.turn
            plain = turn.reasoning is None and turn.headers is None and not turn.wraps
            return None if plain else self._without
        if self._with_calls.turn.calls is None:
            raise ApiError(NO_FORMAT, "tools")
        if request.choice == "auto" and not self._auto:
            raise ApiError(NOT_AUTO, "tool_choice")
        return self._with_calls

    def constrain(
        self, request: ChatRequest, bound: BoundTurnFormat | None, params: SamplingParams, prompt: str
    ) -> GrammarScope:
        """Constrain the turn as the request asks. Returns the constrained parts, for the answer's parser. RequestError or
        ApiError names a field that cannot be honoured."""
        if bound is None:
            return GrammarScope.NOTHING
        aside = aside_of(bound, prompt) if params.stop else None
        if aside is not None:
            opens, close, inside = aside
            params.stop_aside = ReasoningDelimiters(opens=opens, close=close, inside=inside)
        return Constraint(request, bound, prompt, self._level).hold(params)
