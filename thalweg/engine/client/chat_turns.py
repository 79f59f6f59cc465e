"""The turns of `LLM.chat`: whole answers taken apart into reasoning, content and calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from thalweg.engine.client.frontend import Frontend
from thalweg.outputs import RequestOutput, ToolCall
from thalweg.params import SamplingParams
from thalweg.turns.bind import bind
from thalweg.turns.choose import choose
from thalweg.turns.format import Turn
from thalweg.turns.reader import read


class ChatTurns:
    """How the answers of one `LLM.chat` are read."""

    def __init__(
        self,
        frontend: Frontend,
        template: str | None,
        tools: Sequence[Mapping[str, Any]] | None,
        tool_parser: str | None,
        reasoning_parser: str | None,
    ) -> None:
        """template: used in place of the model's. ConfigError for a parser that is none."""
        tokenizer, turn = frontend.tokenizer, Turn()
        if tokenizer is not None:
            source = template or (frontend.chat.source if frontend.chat else None)
            render = frontend.chat.writer(template) if frontend.chat else None
            turn = choose(tool_parser, reasoning_parser, source, tokenizer.response_template, render)
        functions = [t.get("function", t) for t in tools or ()]
        self._schemas = {f["name"]: f.get("parameters") or {} for f in functions if isinstance(f.get("name"), str)}
        self._calls = bool(tools) and turn.calls is not None
        self._bound = bind(turn if self._calls else turn.without_calls(), tokenizer)

    def marking(self, params: SamplingParams) -> SamplingParams:
        """The same, with the tokens that readers must know marked."""
        if not self._bound.marked or not isinstance(params, SamplingParams):
            return params
        return msgspec.structs.replace(params, marked_token_ids=list(self._bound.marked))

    def read(self, output: RequestOutput, params: SamplingParams) -> None:
        """Fill in what the choices of an output say."""
        for choice in output.outputs:
            said = read(self._bound, choice.text, output.prompt or "", self._schemas)
            choice.content, choice.reasoning = said.content, said.reasoning or None
            choice.tool_calls = [ToolCall(c.id, c.name, c.arguments) for c in said.calls] if self._calls else None
            choice.text = self._bound.unmarked(choice.text, params.skip_special_tokens)
