"""The grammar: a turn that must call tools, as Lark source for llguidance. Tokens are written <[ID]>, schemas %json.

White space is as the writer's, so what is allowed is what the model's template taught it. Reasoning is free, and comes
first. https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from thalweg.errors import RequestError
from thalweg.text.marks import id_of, is_half
from thalweg.turns.bind import Bound
from thalweg.turns.bodies.elements import ITEM
from thalweg.turns.bodies.schema import must_be_string, types
from thalweg.turns.format import Calls, GemmaArgs, Header, JsonArgs, JsonCalls, PythonCalls, Reasoning, Tagged

MEANING = frozenset('\\/.*+?()[]{}|^$"')
"""Characters that mean something in a regular expression."""
ANY = "/(.|\\n)*/"


def turn_grammar(
    bound: Bound,
    tools: Mapping[str, Any],
    name: str | None = None,
    parallel: bool = True,
    thinking: bool = False,
    thought: bool = False,
) -> str:
    """Source of a turn that calls at least one of `tools`, or exactly the one named.

    tools: name -> JSON schema of the parameters. thinking: the prompt has opened the reasoning. thought: what the source
    describes begins after the reasoning. RequestError (param "tool_choice") where the format cannot be constrained."""
    return _Grammar(bound, tools if name is None else {name: tools[name]}, parallel and name is None).source(thinking, thought)


def end_of_reasoning(bound: Bound) -> int | None:
    """The token that ends reasoning. None: more than one does, or text."""
    close = bound.turn.reasoning.close if bound.turn.reasoning is not None else ""
    return id_of(close) if len(close) == 2 and all(map(is_half, close)) else None


def beginning_of_calls(bound: Bound) -> int | None:
    """The token that begins calls, and nothing else of a turn. None: text does, or a call may also stand in reasoning that it
    does not end."""
    calls, reasoning = bound.turn.calls, bound.turn.reasoning
    if calls is None or calls.bare or bound.turn.headers is not None:
        return None
    if reasoning is not None and not (reasoning.implicit_ends or reasoning.kept):
        return None
    opened = calls.section[0] or calls.open
    return id_of(opened) if is_half(opened[:1] or " ") else None


def begun_grammar(bound: Bound, tools: Mapping[str, Any], parallel: bool = True) -> str:
    """Source of what follows the token of `beginning_of_calls`: the rest of that call, others, and the end. Errors as
    `turn_grammar`."""
    return _Grammar(bound, tools, parallel).begun(beginning_of_calls(bound))


class _Grammar:
    def __init__(self, bound: Bound, tools: Mapping[str, Any], parallel: bool) -> None:
        calls = bound.turn.calls
        if calls is None:
            raise RequestError("tool_choice: no format of calls is known for this model", "tool_choice")
        self._calls: Calls = calls
        self._turn, self._tools, self._parallel = bound.turn, tools, parallel
        self._rules: dict[str, str] = {}

    def source(self, thinking: bool, thought: bool) -> str:
        reasoning, header = self._turn.reasoning, self._turn.headers
        if header is not None:
            start = self._messages(header)
        else:
            before = ""
            if reasoning is not None and not reasoning.kept:
                before = _literal(reasoning.after) if thought else self._reasoning(reasoning, thinking)
            start = f"{before} {self._section()}"
        return "\n".join([f"start: {start}", *(f"{name}: {rule}" for name, rule in self._rules.items())]) + "\n"

    def begun(self, token: int | None) -> str:
        start, opened = self._section().strip(), f"<[{token}]>"
        if start.startswith("call"):  # the first of several: the others begin with the token too
            self._rule("first", self._rules["call"].strip().removeprefix(opened))
            start = start.replace("call", "first", 1)
        elif not start.startswith(opened):
            raise RequestError(f"tools: a call in the format {self._calls.name} cannot be held to a schema", "tools")
        lines = [f"start: {start.removeprefix(opened)}", *(f"{name}: {rule}" for name, rule in self._rules.items())]
        return "\n".join(lines) + "\n"

    def _rule(self, name: str, body: str) -> str:
        self._rules[name] = body
        return name

    def _reasoning(self, row: Reasoning, thinking: bool) -> str:
        body = self._until("think", row.close)
        after = _literal(row.after)
        if thinking or row.assumed:
            return f"{body} {after}"
        opened = " | ".join(_literal(o) for o in (row.open, *row.also) if o)
        return f"(({opened}) {body} {after})?"

    def _until(self, name: str, terminal: str) -> str:
        """Free text, and the terminal that ends it."""
        if any(map(is_half, terminal)):
            return f"{self._rule(name, ANY)} {_literal(terminal)}"
        return self._rule(f"{name}[lazy]", f"/(.|\\n)*{_pattern(terminal)}/").removesuffix("[lazy]")

    def _section(self) -> str:
        row = self._calls
        first, last = row.section
        if not first:
            return self._all(row)
        line = _literal(row.section_around)
        return f"{_literal(first)} {line} {self._all(row)} {line} {_literal(last)}"

    def _all(self, row: Calls) -> str:
        opened, closed = _literal(row.open or (row.also[0] if row.also and not row.bare else "")), _literal(row.close)
        body = row.body
        if isinstance(body, JsonCalls) and body.array:
            return f'{opened} "[" {self._several(self._any(self._item), _literal(", "))} "]" {closed}'
        if isinstance(body, PythonCalls):
            calls = self._several(self._any(self._python), _literal(row.separator))
            around = ('"["', '"]"') if body.list else (_literal("\n"), _literal("\n"))
            return f"{opened} {around[0]} {calls} {around[1]} {closed}"
        line = _literal(row.around)
        if isinstance(body, JsonCalls):
            one = f"{opened} {line} {self._any(self._item)} {line} {closed}"
        else:
            one = f"{opened} {self._any(self._call)} {closed}"
        return self._several(self._rule("call", one), _literal(row.separator))

    def _several(self, one: str, separator: str) -> str:
        return f"{one} ({separator} {one})*" if self._parallel else one

    def _any(self, made: Callable[[int, str, Any], str]) -> str:
        """One of the tools."""
        rules = [self._rule(f"tool_{i}", made(i, n, s)) for i, (n, s) in enumerate(self._tools.items())]
        return self._rule("tool", " | ".join(rules))

    def _json(self, schema: Any) -> str:
        return "%json " + json.dumps(schema)

    def _parameters(self, schema: Any) -> Any:
        return schema if isinstance(schema, Mapping) and schema else {"type": "object"}

    def _item(self, i: int, name: str, schema: Any) -> str:
        body = self._calls.body
        assert isinstance(body, JsonCalls)
        members: dict[str, Any] = {name: self._parameters(schema)}
        if not body.keyed:
            members = {body.names[0]: {"const": name}, body.args[0]: self._parameters(schema)}
            if body.id_first:
                members = {body.ids[0]: {"type": "string"}, **members}
        closed = {"type": "object", "properties": members, "required": list(members), "additionalProperties": False}
        return self._json(closed)

    def _python(self, i: int, name: str, schema: Any) -> str:
        parts = self._members(i, schema, lambda k, s, j: f"{_literal(k + '=')} {self._literal(i, j, s)}", _literal(", "))
        return f'{_literal(name + "(")} {parts} ")"'

    def _literal(self, i: int, j: int, schema: Any) -> str:
        """A Python value. JSON within lists and objects: the reader takes its words too."""
        return '("True" | "False")' if types(schema) == {"boolean"} else self._value(i, j, schema)

    def _call(self, i: int, name: str, schema: Any) -> str:
        row, body = self._calls, self._calls.body
        assert row.head is not None
        head, opened = self._head(name)
        match body:
            case JsonArgs():
                return f"{head} {self._value(i, -1, self._parameters(schema))} {_literal(row.around)}"
            case GemmaArgs(quote):
                return f"{head} {self._gemma_members(schema, quote)} {_literal('}')}"
            case Tagged():
                line = _literal("" if opened.endswith("\n") else row.around)
                if body.nested:
                    return f"{head} {line} {self._members(i, schema, lambda k, s, j: self._element(body, k, s), '')}"
                return f"{head} {line} {self._members(i, schema, lambda k, s, j: self._tag(body, i, j, k, s), '')}"
        raise RequestError(f"tool_choice: a call in the format {row.name} cannot be forced; send 'auto'", "tool_choice")

    def _head(self, name: str) -> tuple[str, str]:
        """What stands between `open` and the arguments, and the terminal it ends in."""
        head = self._calls.head
        assert head is not None
        before, after = head.name_in_id
        index = self._rule("number", "/[0-9]{1,3}/") if after else ""
        slots = {"name": _literal(name), "id": f"{_literal(before + name + after)} {index}" if after else ""}
        out, ended = slots[head.first], ""
        if head.first == "id" and not after:
            out = self._rule("call_id", "/[a-zA-Z0-9]{9}/")
        for terminal, slot in head.then:
            if slot == "id" or slot == "key":
                continue
            out, ended = f"{out} {_literal(terminal)} {slots.get(slot, '')}", terminal
            if slot == "args":
                break
        return out, ended

    def _members(self, i: int, schema: Any, made: Callable[[str, Any, int], str], separator: str) -> str:
        """The properties in their order, those that are not required optional."""
        properties = schema.get("properties") if isinstance(schema, Mapping) else None
        required = set(schema.get("required") or ()) if isinstance(schema, Mapping) else set()
        items = list(properties.items()) if isinstance(properties, Mapping) else []
        one = [(k in required, f"({made(k, s, j)})") for j, (k, s) in enumerate(items)]
        if not separator:
            return " ".join(m if needed else f"{m}?" for needed, m in one)
        return self._listed(i, one, separator)

    def _listed(self, i: int, members: Sequence[tuple[bool, str]], separator: str) -> str:
        """Members between separators, some of them optional: rest_k is what may follow once something stands."""
        if not members:
            return ""
        rest, begin = "", ""
        for j in range(len(members) - 1, -1, -1):
            needed, member = members[j]
            first = f"{member} {rest}"
            begin = first if needed or (not begin and j == len(members) - 1) else f"({first} | {begin})"
            if not needed and j == len(members) - 1:
                begin = f"({first})?"
            tail = f"({separator} {member}) {rest}" if needed else f"({separator} {member})? {rest}"
            rest = self._rule(f"rest_{i}_{j}", tail)
        return begin

    def _value(self, i: int, j: int, schema: Any) -> str:
        return self._rule(f"value_{i}_{j}" if j >= 0 else f"args_{i}", self._json(schema))

    def _tag(self, body: Tagged, i: int, j: int, key: str, schema: Any) -> str:
        string = must_be_string(schema)
        kind = "string" if string else "json"
        fit = [(t, k) for t, k in body.key_close if k in (kind, None)]
        closes = " | ".join(_literal(t) for t, _ in fit)
        between = "" if body.newline else body.between
        line = "\n" if body.newline else ""
        before = f"{_literal(body.key_open + key)} ({closes}) {_literal(between + body.value_open + line)}"
        end = line + body.value_close
        choices = schema.get("enum") if isinstance(schema, Mapping) else None
        if string and choices:
            value = f"({' | '.join(_literal(str(c)) for c in choices)}) {_literal(end)}"
        elif string:
            value = self._until(f"text_{i}_{j}", end)
        else:
            value = f"{self._value(i, j, schema)} {_literal(end)}"
        return f"{before} {value} {_literal(body.after)}"

    def _element(self, body: Tagged, key: str, schema: Any) -> str:
        """<key>value</key>, and the same for what is in a value. What no schema describes part by part is JSON."""
        opened, closed, allowed = f"{body.key_open}{key}>", f"{body.value_close}{key}>", types(schema)
        number, choices = len(self._rules), schema.get("enum") if isinstance(schema, Mapping) else None
        if must_be_string(schema):
            if not choices:
                return f"{_literal(opened)} {self._until(f'inner_{number}', closed)}"
            value = f"({' | '.join(_literal(str(c)) for c in choices)})"
        elif allowed == {"object"} and schema.get("properties"):
            value = self._members(number, schema, lambda k, s, j: self._element(body, k, s), "")
        elif allowed == {"array"} and schema.get("items"):
            item = self._rule(f"inner_{number}", "")  # its name is taken before those inside it
            self._rules[item] = self._element(body, ITEM, schema["items"])
            least, most = schema.get("minItems", 0), schema.get("maxItems", "")
            value = f"{item}{{{least},{most}}}"
        else:
            value = self._rule(f"inner_{number}", self._json(schema))
        return f"{_literal(opened)} {value} {_literal(closed)}"

    def _gemma_members(self, schema: Any, quote: str) -> str:
        properties = schema.get("properties") if isinstance(schema, Mapping) else None
        items = list(properties.items()) if isinstance(properties, Mapping) else []
        required = set(schema.get("required") or ()) if items else set()
        number = len(self._rules)
        one = [(k in required, f"({_literal(k + ':')} {self._gemma(s, quote)})") for k, s in items]
        return self._listed(number + 1000, one, '","')

    def _gemma(self, schema: Any, quote: str) -> str:
        allowed = types(schema)
        if allowed == {"string"}:
            return f"{_literal(quote)} {self._until(f'string_{len(self._rules)}', quote)}"
        if allowed == {"object"}:
            return f"{_literal('{')} {self._gemma_members(schema, quote)} {_literal('}')}"
        if allowed == {"array"} and isinstance(schema, Mapping) and schema.get("items"):
            item = self._rule(f"item_{len(self._rules)}", self._gemma(schema["items"], quote))
            return f'"[" ({item} ("," {item})*)? "]"'
        if allowed and allowed <= {"integer", "number", "boolean", "null"}:
            return self._rule(f"scalar_{len(self._rules)}", self._json(schema))
        raise RequestError("tool_choice: a schema of this kind cannot be forced in this format; send 'auto'", "tool_choice")

    def _messages(self, header: Header) -> str:
        """Reasoning may come first, then one call. The prompt ends in the first header's opening."""
        turn = self._turn
        end, again = _literal(header.end), f"{_literal(header.closes[0])} {_literal(header.open + header.role)}"
        channel = _literal(header.inside[0]) if header.inside else ""
        thought = f"{channel} {_literal(header.reasoning)} {end} {self._until('think', header.closes[0])}"
        thought += f" {_literal(header.open + header.role)}"
        if header.call:
            calls = [
                f"{channel} {_literal('commentary ' + header.call + name + ' ')} {_literal(header.inside[1] + 'json')} {end} "
                f"{self._value(i, -1, self._parameters(schema))}"
                for i, (name, schema) in enumerate(self._tools.items())
            ]
            return f"({thought})? ({' | '.join(calls)})"
        if turn.calls is None or again == "":
            raise RequestError("tool_choice: a call in this format cannot be forced; send 'auto'", "tool_choice")
        self._parallel = False
        to = " | ".join(_literal(f"to={name}") for name in self._tools)
        return f"({thought})? ({to}) {end} {self._section()}"


def _literal(text: str) -> str:
    """A terminal as Lark has it: text in quotes, tokens by their ids."""
    out, plain, i = [], "", 0
    while i < len(text):
        if is_half(text[i]):
            out += [json.dumps(plain)] if plain else []
            out.append(f"<[{id_of(text[i : i + 2])}]>")
            plain, i = "", i + 2
        else:
            plain, i = plain + text[i], i + 1
    return " ".join([*out, *([json.dumps(plain, ensure_ascii=False)] if plain else [])])


def _pattern(text: str) -> str:
    """A regular expression of just this text."""
    return "".join("\\" + c if c in MEANING else "\\n" if c == "\n" else c for c in text)
