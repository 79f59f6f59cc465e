"""Tools of the Responses API as functions for the model, and back again by the names it calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from thalweg.server.errors import ApiError

KINDS = ("function", "custom", "namespace")
INPUT = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}
"""The parameters of a custom tool: free text."""
CHOICES = ("function", "custom", "allowed_tools")


@dataclass(frozen=True, slots=True)
class KnownTool:
    """A tool as the client named it."""

    kind: str
    """function | custom"""
    name: str
    namespace: str | None = None


def refuse_choice(body: dict[str, Any]) -> None:
    """ApiError for a tool_choice that asks for a tool which runs at the copied API."""
    choice = body.get("tool_choice")
    kind = choice.get("type") if isinstance(choice, dict) else "function"
    if kind not in CHOICES:
        words = f"tool_choice: type {str(kind)[:64]!r} is not supported by this version; name a function, or send 'auto'"
        raise ApiError(words, "tool_choice")


def drop_tools(holder: dict[str, Any], body: dict[str, Any], where: str = "tools") -> None:
    """Remove tools that run at the copied API from the `tools` of `holder`. Each counts as an unknown field of `body`, and is
    reported. ApiError for a tool that lacks its name."""
    tools = holder.get("tools")
    if not isinstance(tools, list):
        return
    holder["tools"] = kept = []
    for i, tool in enumerate(tools):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if isinstance(kind, str) and kind not in KINDS:
            body[f"tools[].{kind}"] = None
            continue
        _check(tool, f"{where}[{i}]")
        kept.append(tool)


def _check(tool: Any, where: str) -> None:
    if not isinstance(tool, dict):
        raise ApiError(f"{where}: must be an object with type and name", where)
    name, kind = tool.get("name"), tool.get("type")
    if not isinstance(kind, str):
        raise ApiError(f"{where}.type: must be function or custom", f"{where}.type")
    if not isinstance(name, str) or not 0 < len(name) <= 256:
        raise ApiError(f"{where}.name: must be a string of 1 to 256 characters", f"{where}.name")
    if kind == "namespace":
        for j, inner in enumerate(_list(tool, "tools", where)):
            _check(inner, f"{where}.tools[{j}]")
            if inner["type"] not in ("function", "custom"):
                at = f"{where}.tools[{j}].type"
                raise ApiError(f"{at}: must be function or custom", at)
        return
    if not isinstance(tool.get("description") or "", str):
        raise ApiError(f"{where}.description: must be a string", f"{where}.description")
    if not isinstance(tool.get("parameters") or {}, dict):
        raise ApiError(f"{where}.parameters: must be an object: a JSON schema", f"{where}.parameters")


def _list(tool: dict[str, Any], name: str, where: str) -> list[Any]:
    found = tool.get(name)
    if not isinstance(found, list):
        raise ApiError(f"{where}.{name}: must be a list", f"{where}.{name}")
    return found


class Tools:
    """The tools of one request."""

    def __init__(self, tools: list[dict[str, Any]], choice: Any, more: Iterable[dict[str, Any]] = ()) -> None:
        """tools: as `drop_tools` left them. more: tools from items. The last of a name counts. ApiError if the choice names no
        tool."""
        self.functions: list[dict[str, Any]] = []
        """As chat completions have them."""
        self.known: dict[str, KnownTool] = {}
        """By the names in the model's prompt."""
        self.fields: dict[str, str] = {}
        """Of the request, by those names: where their schemas are."""
        for i, tool in enumerate(tools):
            for j, (known, inner) in enumerate(_flat(tool)):
                name = qualified_name(known.namespace, known.name)
                self.known[name] = known
                self.functions.append(_function(known, inner))
                self.fields[name] = f"tools[{i}].tools[{j}].parameters" if inner is not tool else f"tools[{i}].parameters"
        for known, inner in (pair for tool in more for pair in _flat(tool)):
            name = qualified_name(known.namespace, known.name)
            if name in self.known:
                self.functions = [f for f in self.functions if f["function"]["name"] != name]
            self.known[name] = known
            self.functions.append(_function(known, inner))
            self.fields[name] = "tools"
        self.choice = self._choice(choice)

    def of(self, name: str) -> KnownTool:
        """The tool that the model called by `name`. A model may make up names."""
        return self.known.get(name) or KnownTool("function", name)

    def _choice(self, choice: Any) -> Any:
        """`choice` as chat completions have it. Of allowed tools the others are taken out."""
        if not isinstance(choice, dict):
            return choice
        if choice["type"] != "allowed_tools":
            return {"type": "function", "function": {"name": self._tool_name(choice, "tool_choice")}}
        allowed = [self._tool_name(t, "tool_choice.tools") for t in choice.get("tools") or () if isinstance(t, dict)]
        self.functions = [f for f in self.functions if f["function"]["name"] in allowed]
        mode = choice.get("mode", "auto")
        if mode not in ("auto", "required"):
            raise ApiError("tool_choice.mode: must be auto or required", "tool_choice.mode")
        return mode

    def _tool_name(self, tool: dict[str, Any], where: str) -> str:
        name = tool.get("name")
        found = qualified_name(tool.get("namespace"), name) if isinstance(name, str) else ""
        if found not in self.known:
            raise ApiError(f"{where}: tools has no tool {str(name)[:80]!r}", where)
        return found


def qualified_name(namespace: str | None, name: str) -> str:
    """The name of a tool in the model's prompt."""
    if not namespace:
        return name
    return f"{namespace.removesuffix('__')}__{name}"


def _flat(tool: dict[str, Any]) -> Iterator[tuple[KnownTool, dict[str, Any]]]:
    if tool["type"] != "namespace":
        yield KnownTool(tool["type"], tool["name"]), tool
        return
    for inner in tool["tools"]:
        yield KnownTool(inner["type"], inner["name"], tool["name"]), inner


def _function(known: KnownTool, tool: dict[str, Any]) -> dict[str, Any]:
    says, parameters = tool.get("description"), tool.get("parameters")
    if known.kind == "custom":
        parameters, form = INPUT, tool.get("format")
        if isinstance(form, dict) and isinstance(form.get("definition"), str):
            says = f"{says or ''}\n\nThe input follows this {form.get('syntax', '')} grammar:\n{form['definition']}".strip()
    strict = None if known.kind == "custom" else tool.get("strict")
    function = {
        "name": qualified_name(known.namespace, known.name),
        "description": says,
        "parameters": parameters,
        "strict": strict,
    }
    return {"type": "function", "function": {k: v for k, v in function.items() if v is not None}}


def input_of(arguments: str) -> str:
    """A custom tool's text out of the arguments of its function. Arguments of another form are the text."""
    try:
        read = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return arguments
    kind = read.get("input") if isinstance(read, dict) and len(read) == 1 else None
    return kind if isinstance(kind, str) else arguments


def arguments_of(text: str) -> str:
    """`input_of`'s inverse."""
    return orjson.dumps({"input": text}).decode()
