"""Builds the grammar of a turn from its row: required calls, optional calls, and content of a form.

White space is the writer's, as in the model's template. Reasoning is free text, and comes first. A reader that knows the
grammar's scope (`held`) reads every accepted turn as the grammar derives it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from thalweg.errors import RequestError
from thalweg.text.marks import id_of, is_half
from thalweg.turns.arguments import Arguments
from thalweg.turns.bind import BoundTurnFormat
from thalweg.turns.format import Calls, GemmaArgs, Header, JsonArgs, JsonCalls, PythonCalls, Reasoning, TaggedArgs
from thalweg.turns.lark import ANY, Rules, containing, literal, pattern

CONTENT = "@inner"
"""Rule of content with a form. The caller that compiles the grammar adds it."""
Names = Mapping[str, tuple[str, str]]
NONE: Names = MappingProxyType({})
WHITE = "[ \\t\\r\\n]"


def turn_grammar(
    bound: BoundTurnFormat,
    tools: Mapping[str, Any],
    name: str | None = None,
    parallel: bool = True,
    thinking: bool = False,
    thought: bool = False,
    names: Names = NONE,
) -> str:
    """Source of a turn that calls at least one of `tools`, or exactly the one named.

    tools: name -> JSON schema of the parameters. thinking: the prompt has opened the reasoning. thought: the source begins
    after the reasoning. names: tool -> (field of its schema, its name in messages). RequestError where the format cannot be
    constrained. Its param is that field, or "tool_choice"."""
    tools = tools if name is None else {name: tools[name]}
    return _Grammar(bound, tools, parallel and name is None, "tool_choice", names).turn(thinking, thought)


def form_grammar(
    bound: BoundTurnFormat,
    tools: Mapping[str, Any],
    parallel: bool = True,
    thinking: bool = False,
    thought: bool = False,
    names: Names = NONE,
) -> str:
    """Source of a turn that calls tools, or has content of the form `CONTENT`. Without tools: only the content. Parameters and
    errors as `turn_grammar` (param "tools")."""
    return _Grammar(bound, tools, parallel, "tools", names).turn(thinking, thought, CONTENT)


def free_grammar(
    bound: BoundTurnFormat,
    tools: Mapping[str, Any],
    parallel: bool = True,
    thinking: bool = False,
    thought: bool = False,
    names: Names = NONE,
) -> str:
    """Source of a turn of any text that may end in calls, which follow their schemas. Parameters and errors as
    `turn_grammar` (param "tools")."""
    grammar = _Grammar(bound, tools, parallel, "tools", names)
    return grammar.turn(thinking, thought, *grammar.free())


def end_of_reasoning(bound: BoundTurnFormat) -> int | None:
    """Id of the token that ends reasoning. None: several tokens or text end it."""
    close = bound.turn.reasoning.close if bound.turn.reasoning is not None else ""
    return id_of(close) if len(close) == 2 and all(map(is_half, close)) else None


def beginning_of_calls(bound: BoundTurnFormat) -> int | None:
    """Id of the token that begins calls and nothing else. None: text begins them, or reasoning may contain calls that do not
    end it."""
    calls, reasoning = bound.turn.calls, bound.turn.reasoning
    if calls is None or calls.bare or bound.turn.headers is not None:
        return None
    if reasoning is not None and not (reasoning.implicit_ends or reasoning.kept):
        return None
    return id_of(calls.beginning) if is_half(calls.beginning[:1] or " ") else None


def begun_grammar(bound: BoundTurnFormat, tools: Mapping[str, Any], parallel: bool = True, names: Names = NONE) -> str:
    """Source of the turn after the token of `beginning_of_calls`: the rest of that call, others, and the end. Errors as
    `turn_grammar` (param "tools")."""
    grammar = _Grammar(bound, tools, parallel, "tools", names)
    return grammar.rules.source(grammar.rest_of_calls(f"<[{beginning_of_calls(bound)}]>"))


class _Grammar:
    def __init__(self, bound: BoundTurnFormat, tools: Mapping[str, Any], parallel: bool, field: str, names: Names) -> None:
        """field: the request's field that asks for the grammar. tools: empty for turns without calls."""
        self._turn, self._tools, self._parallel, self._field = bound.turn, tools, parallel, field
        self._bound, self.rules = bound, Rules(bound.token_text)
        if tools and bound.turn.calls is None:
            raise RequestError(f"{field}: the format of this model's tool calls is unknown", field)
        self._one_lexeme = False
        """Is all text up to a tool's name one lexeme? Necessary next to free text, as the longest lexeme wins."""
        self._arguments = Arguments(self.rules, self._calls, bound.token_text, field, names) if tools else None

    @property
    def _calls(self) -> Calls:
        assert self._turn.calls is not None, "there are tools"
        return self._turn.calls

    def turn(self, thinking: bool, thought: bool, *others: str) -> str:
        """others: alternatives to the calls."""
        reasoning, header = self._turn.reasoning, self._turn.headers
        if header is not None:
            return self.rules.source(self._messages(header, others))
        before = ""
        if reasoning is not None and not reasoning.kept:
            before = literal(reasoning.after) if thought else self._reasoning(reasoning, thinking)
        calls = [self._section().strip()] if self._tools else []
        return self.rules.source(f"{before} ({' | '.join([*calls, *others])})")

    def rest_of_calls(self, opened: str) -> str:
        """The rule for the text after the terminal that begins calls."""
        rules, start = self.rules, self._section().strip()
        if start.startswith("call"):  # the first of several: the others begin with the terminal too
            rules.rule("first", rules["call"].strip().removeprefix(opened))
            start = start.replace("call", "first", 1)
        elif not start.startswith(opened):
            raise RequestError(
                f"{self._field}: a call in the format {self._calls.name} cannot be held to a schema", self._field
            )
        return start.removeprefix(opened)

    def free(self) -> list[str]:
        """Alternatives for free text: text without a call, and text followed by calls."""
        calls, header = self._calls, self._turn.headers
        if header is not None:
            marks = [self._bound.token_text(m) for m in (header.open, *header.closes, calls.beginning) if m]
            return [self.rules.rule("WORDS", f"{ANY} & ~{self.rules.fresh('HELD', containing(*marks))}")]
        if calls.bare and not calls.beginning:
            self._one_lexeme = True
            return [f"({self._bare_text()})?"]
        if not calls.beginning:
            raise RequestError(f"{self._field}: a call in the format {calls.name} cannot be held to a schema", self._field)
        thought = self._exclude_reasoning()
        opened = self.rules.fresh("HELD", containing(self._bound.token_text(calls.beginning)))
        words = self.rules.fresh("WORDS", f"{ANY} & ~{opened}{thought}")
        marks = [literal(w) for w in self._turn.wraps if all(map(is_half, w))]
        text = self.rules.rule("words", " | ".join([words, *marks]))
        if is_half(calls.beginning[0]):
            first = literal(calls.beginning[:2])
            return [f"{text}*", f"{text}* {first} {self.rest_of_calls(first)}"]
        first = literal(calls.beginning)
        begun = self.rest_of_calls(first)
        return [f"{text}*", f"{self.rules.until(calls.beginning, ANY + thought if thought else None)} {begun}"]

    def _exclude_reasoning(self) -> str:
        """The suffix of a text expression that excludes text beginning like reasoning."""
        reasoning = self._turn.reasoning
        opens = [reasoning.open, *reasoning.also] if reasoning is not None and not reasoning.kept else []
        shown = "|".join(pattern(self._bound.token_text(o)) for o in opens if o)
        begins = f"/{WHITE}*({shown})(.|\\n)*/"
        return f" & ~{self.rules.fresh('HELD', begins)}" if shown else ""

    def _bare_text(self) -> str:
        """Text without a call, for formats without a terminal: it begins differently, or names no tool."""
        python = isinstance(self._calls.body, PythonCalls)
        begins = "\\[" if python else "{\\["
        names = list(self._tools) if python else [*map(json.dumps, self._tools), "\\u"]
        held = self.rules.fresh("HELD", containing(*names))
        plain = f"/{WHITE}*[^ \\t\\r\\n{begins}](.|\\n)*/{self._exclude_reasoning()}"
        alike = f"/{WHITE}*[{begins}](.|\\n)*/ & ~{held}"
        return f"{self.rules.fresh('WORDS', plain)} | {self.rules.fresh('WORDS', alike)}"

    def _reasoning(self, row: Reasoning, thinking: bool) -> str:
        body, after = self.rules.until(row.close), literal(row.after)
        if thinking or row.assumed:
            return f"{body} {after}"
        opened = " | ".join(literal(o) for o in (row.open, *row.also) if o)
        return f"(({opened}) {body} {after})?"

    def _section(self) -> str:
        row = self._calls
        first, last = row.section
        if not first:
            return self._all(row)
        line = literal(row.section_around)
        return f"{literal(first)} {line} {self._all(row)} {line} {literal(last)}"

    def _all(self, row: Calls) -> str:
        opened, closed, body = literal(row.opening), literal(row.close), row.body
        if self._one_lexeme and isinstance(body, PythonCalls):
            return self._list_of_one_lexeme(literal(row.separator))
        if self._one_lexeme and isinstance(body, JsonCalls) and body.array:
            return self._list_of_one_lexeme(literal(", "))
        if isinstance(body, JsonCalls) and body.array:
            return f'{opened} "[" {self._several(self._any(), literal(", "))} "]" {closed}'
        if isinstance(body, PythonCalls):
            calls = self._several(self._any(), literal(row.separator))
            around = ('"["', '"]"') if body.list else (literal("\n"), literal("\n"))
            return f"{opened} {around[0]} {calls} {around[1]} {closed}"
        line = literal(row.around) if isinstance(body, JsonCalls) else ""
        one = f"{opened} {line} {self._any()} {line} {closed}"
        return self._several(self.rules.rule("call", one), literal(row.separator))

    def _list_of_one_lexeme(self, separator: str) -> str:
        """Calls in a list. The first call's lexeme includes the list's bracket."""
        more = self._any()
        first = self.rules.rule("first", " | ".join(self._call(n, s, "[") for n, s in self._tools.items()))
        return f'first ({separator} {more})* "]"' if self._parallel else f'{first} "]"'

    def _several(self, one: str, separator: str) -> str:
        return f"{one} ({separator} {one})*" if self._parallel else one

    def _any(self) -> str:
        """One of the tools."""
        result = [self.rules.rule(f"tool_{i}", self._call(n, s)) for i, (n, s) in enumerate(self._tools.items())]
        return self.rules.rule("tool", " | ".join(result))

    def _call(self, name: str, schema: Any, before: str = "") -> str:
        """A call between its terminals. before: text before it, in one lexeme."""
        row, body, arguments = self._calls, self._calls.body, self._arguments
        assert arguments is not None
        match body:
            case JsonCalls():
                return arguments.item(body, name, schema, before if self._one_lexeme else None)
            case PythonCalls():
                return f'{literal(before + name + "(")} {arguments.of(name, schema)} ")"'
            case JsonArgs():
                return f"{self._head(name)[0]} {arguments.of(name, schema)} {literal(row.around)}"
            case GemmaArgs():
                return f"{self._head(name)[0]} {arguments.of(name, schema)} {literal('}')}"
            case TaggedArgs():
                head, opened = self._head(name)
                line = literal("" if opened.endswith("\n") else row.around)
                return f"{head} {line} {arguments.of(name, schema)}"

    def _head(self, name: str) -> tuple[str, str]:
        """(the rule for the text between `open` and the arguments, the terminal at its end)."""
        head = self._calls.head
        assert head is not None
        before, after = head.name_in_id
        index = self.rules.rule("number", "/[0-9]{1,3}/") if after else ""
        slots = {"name": literal(name), "id": f"{literal(before + name + after)} {index}" if after else ""}
        out, ended = slots[head.first], ""
        if head.first == "id" and not after:
            out = self.rules.rule("call_id", "/[a-zA-Z0-9]{9}/")
        for terminal, slot in head.then:
            if slot in ("id", "key"):
                continue
            out, ended = f"{out} {literal(terminal)} {slots.get(slot, '')}", terminal
            if slot == "args":
                break
        return out, ended

    def _messages(self, header: Header, others: tuple[str, ...]) -> str:
        """Reasoning may come first, then one call or content. The prompt ends in the first header's opening."""
        end = literal(header.end)
        channel = literal(header.inside[0]) if header.inside else ""
        thought = f"{channel} {literal(header.reasoning)} {end} {self.rules.until(header.closes[0])}"
        thought += f" {literal(header.open + header.role)}"
        found = [f"{literal(header.content)} {end} ({o})" for o in others]
        if header.call:
            found += [
                f"{channel} {literal('commentary ' + header.call + name + ' ')} {literal(header.inside[1] + 'json')} {end} "
                f"{self._arguments.of(name, schema)}"  # type: ignore[union-attr]
                for name, schema in self._tools.items()
            ]
        elif self._tools:
            self._parallel = False
            to = " | ".join(literal(f"to={name}") for name in self._tools)
            found.append(f"({to}) {end} {self._section()}")
        return f"({thought})? ({' | '.join(found)})"
