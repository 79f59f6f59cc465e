"""Grammar constraints of a chat's answer: required calls, calls of strict tools, content of a form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from thalweg.params import GrammarPart, SamplingParams, StructuredOutputsParams
from thalweg.server.core.request import ChatRequest, NamedTool
from thalweg.turns.arguments import object_of
from thalweg.turns.bind import BoundTurnFormat
from thalweg.turns.format import JsonArgs, JsonCalls
from thalweg.turns.grammar import (
    beginning_of_calls,
    begun_grammar,
    end_of_reasoning,
    form_grammar,
    free_grammar,
    turn_grammar,
)
from thalweg.turns.grammar_scope import GrammarScope
from thalweg.turns.reader import Reader

BESIDE_CALLS = frozenset({"json", "json_object", "choice"})
"""Forms that leave room for calls. The text of others may be anything, calls too."""
WHOLE = GrammarScope.CALLS | GrammarScope.THOUGHT


class Constraint:
    """One request's. `hold` says it in its parameters."""

    def __init__(self, request: ChatRequest, bound: BoundTurnFormat, prompt: str, level: str) -> None:
        """level: of --tool-strict-level."""
        self._request, self._bound, self._level = request, bound, level
        reader = Reader(bound, prompt)
        self._thinking, self._in_header = reader.thinking, reader.in_header
        end = end_of_reasoning(bound) if reader.thinking else None
        self._free = None if end is None else [end]
        """Reasoning that the prompt has opened stays free up to this token, and the constraint begins after it."""
        self._parallel = request.parallel_tool_calls is not False
        self._names = {
            name: (field, f"tools: parameters of {name!r}" if field == "tools" else field)
            for name, field in request.tool_fields.items()
        }
        """By tool: the field of its schema, and its name in error messages."""

    def hold(self, params: SamplingParams) -> GrammarScope:
        """Constrain the turn as the request asks. Returns the constrained parts. RequestError names a field that cannot be
        honoured."""
        form = params.structured_outputs
        if self._request.choice in ("required", "named"):  # a call that must be made leaves no room for content
            params.structured_outputs = self._must_call()
            return WHOLE
        if form is None:
            return self._strict(params)
        if self._request.choice == "auto" and form.constraint[0] in BESIDE_CALLS:
            tools, thought = self._tools(), self._free is not None
            source = form_grammar(self._bound, tools, self._parallel, self._thinking, thought, self._names)
            params.structured_outputs = self._build_params(source, "tools", tools, form)
            return WHOLE | GrammarScope.CONTENT
        return self._content(params, form)

    def _build_params(
        self, source: str, field: str, tools: Mapping[str, Any], form: StructuredOutputsParams | None = None
    ) -> StructuredOutputsParams:
        """tools: schemas that the source holds, by name."""
        parts = [GrammarPart(*self._names[name], object_of(schema)) for name, schema in tools.items() if schema]
        return StructuredOutputsParams(grammar=source, free_until=self._free, asked_as=field, inner=form, parts=parts)

    def _must_call(self) -> StructuredOutputsParams:
        request = self._request
        tools = {t.function.name: t.function.parameters or {} for t in request.tools or ()}
        named = request.tool_choice.function.name if isinstance(request.tool_choice, NamedTool) else None
        thought = self._free is not None
        source = turn_grammar(self._bound, tools, named, self._parallel, self._thinking, thought, self._names)
        return self._build_params(source, "tool_choice", tools if named is None else {named: tools[named]})

    def _content(self, params: SamplingParams, form: StructuredOutputsParams) -> GrammarScope:
        """Constrain only the content."""
        if self._in_header or (self._thinking and self._free is None):
            source = form_grammar(self._bound, {}, True, self._thinking)
            params.structured_outputs = self._build_params(source, form.asked_as or "structured_outputs", {}, form)
            return GrammarScope.CONTENT | GrammarScope.THOUGHT
        if self._thinking:
            params.structured_outputs = replace(form, free_until=self._free)
        return GrammarScope.CONTENT

    def _strict(self, params: SamplingParams) -> GrammarScope:
        """Strict tools: text is free up to a call, and calls follow their schemas. --tool-strict-level constrains the calls of
        all tools where a token begins a call: "function" their names and form, "parameter" their schemas."""
        token, strict = beginning_of_calls(self._bound), self._strict_names()
        if self._request.choice != "auto" or not (strict or (self._level == "function" and token is not None)):
            return GrammarScope.NOTHING
        tools = self._tools()
        if token is not None:
            source = begun_grammar(self._bound, tools, self._parallel, self._names)
            params.structured_outputs = replace(self._build_params(source, "tools", tools), free_until=[token])
            return GrammarScope.CALLS
        thought = self._free is not None
        source = free_grammar(self._bound, tools, self._parallel, self._thinking, thought, self._names)
        params.structured_outputs = self._build_params(source, "tools", tools)
        return WHOLE

    def _strict_names(self) -> set[str]:
        every = self._level == "parameter" and beginning_of_calls(self._bound) is not None
        return {t.function.name for t in self._request.tools or () if t.function.strict or every}

    def _tools(self) -> dict[str, Any]:
        """Schemas by name. A tool without `strict` allows any object, where the format defines the keys of a call without the
        schema."""
        calls, strict = self._bound.turn.calls, self._strict_names()
        named = calls is not None and isinstance(calls.body, JsonCalls | JsonArgs)
        functions = [t.function for t in self._request.tools or ()]
        return {f.name: (f.parameters if f.name in strict or not named else None) or {} for f in functions}
