"""The turns of `LLM.chat`: whole answers parsed into reasoning, content and calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from thalweg.engine.client.frontend import Frontend
from thalweg.outputs import CompletionOutput, RequestOutput, ToolCall
from thalweg.params import ReasoningDelimiters, SamplingParams
from thalweg.turns.bind import bind
from thalweg.turns.choose import choose
from thalweg.turns.events import Message
from thalweg.turns.format import TurnFormat
from thalweg.turns.grammar_scope import GrammarScope
from thalweg.turns.reader import read
from thalweg.turns.reasoning_delimiters import aside_of


class ChatTurns:
    """The parser of the answers of one `LLM.chat`."""

    def __init__(
        self,
        frontend: Frontend,
        template: str | None,
        tools: Sequence[Mapping[str, Any]] | None,
        tool_parser: str | None,
        reasoning_parser: str | None,
    ) -> None:
        """template: renders the conversation, by name or as a source. None: as `Templates.pick` chooses. ConfigError for an
        unknown parser."""
        tokenizer, chat, turn = frontend.tokenizer, frontend.chat, TurnFormat()
        if tokenizer is not None:
            requested = template is not None or (chat is not None and chat.templates.pick(bool(tools)) is not None)
            source = chat.templates.find(template, bool(tools)) if chat is not None and requested else template
            render = chat.writer(source) if chat is not None else None
            turn = choose(tool_parser, reasoning_parser, source, tokenizer.response_template, render)
        functions = [t.get("function", t) for t in tools or ()]
        self._schemas = {f["name"]: f.get("parameters") or {} for f in functions if isinstance(f.get("name"), str)}
        self._calls = bool(tools) and turn.calls is not None
        self._bound = bind(turn if self._calls else turn.without_calls(), tokenizer)

    def marking(self, params: SamplingParams, prompt: str | Mapping[str, Any] | list[int] = "") -> SamplingParams:
        """The same, with the tokens marked that parsers need. Stop strings do not count in reasoning."""
        if not isinstance(params, SamplingParams):
            return params
        text = prompt.get("prompt") if isinstance(prompt, Mapping) else prompt
        aside = aside_of(self._bound, text if isinstance(text, str) else "") if params.stop else None
        if aside is not None:
            opens, close, inside = aside
            params = msgspec.structs.replace(params, stop_aside=ReasoningDelimiters(opens=opens, close=close, inside=inside))
        if not self._bound.marked:
            return params
        return msgspec.structs.replace(params, marked_token_ids=list(self._bound.marked))

    def read(self, output: RequestOutput, params: SamplingParams) -> None:
        """Fill in the parsed message of each choice of an output."""
        for choice in output.outputs:
            message = self._read_message(choice, output.prompt or "", params)
            choice.content, choice.reasoning = message.content, message.reasoning or None
            choice.tool_calls = [ToolCall(c.id, c.name, c.arguments) for c in message.calls] if self._calls else None
            choice.text = self._bound.unmark(choice.text, params.skip_special_tokens)

    def _read_message(self, choice: CompletionOutput, prompt: str, params: SamplingParams) -> Message:
        """A constraint from the start of the text makes the whole text content."""
        form = params.structured_outputs
        if form is not None and not form.free_until:
            return Message(content=self._bound.token_text(choice.text))
        held = GrammarScope.NOTHING if form is None else GrammarScope.CONTENT
        cut = choice.finish_reason != "stop" or isinstance(choice.stop_reason, str)
        return read(self._bound, choice.text, prompt, self._schemas, held, cut)
