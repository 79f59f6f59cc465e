"""Chat templates: messages to prompt text, in a jinja2 sandbox. The only module that imports jinja2.

Follows what transformers gives a template (https://huggingface.co/docs/transformers/chat_templating_writing), so that
templates written for it render the same. Knows no tokenizer, no HTTP. The sandbox keeps a template from reaching Python;
it does not bound the time or memory a hostile template can use, so templates come from the model or the operator only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from thalweg.errors import CheckpointError, RequestError

ContentFormat = Literal["string", "openai"]
"""How a template reads message content: one string, or a list of typed parts."""
RESERVED = frozenset({"messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "content_format"})
"""Names that template keyword arguments may not replace."""
_END_MARK = "\ue0f1end-of-final-message\ue0f1 "
"""Appended to the message to continue, to find where it ends in the rendered text. Ends in a space so that a template
that strips its content shows it."""


class ChatTemplate:
    """One compiled template. Immutable; rendering is thread-safe."""

    def __init__(self, source: str, variables: Mapping[str, Any] | None = None) -> None:
        """variables: what the template always sees (bos_token, eos_token ...). CheckpointError if the source does not parse."""
        self.source = source
        self.variables = dict(variables or {})
        environment = _environment()
        try:
            tree = environment.parse(source)
            self._template = environment.from_string(source)
        except jinja2.TemplateError as e:
            raise CheckpointError(f"chat template: line {getattr(e, 'lineno', '?')}: {e}; correct the template") from e
        self.content_format: ContentFormat = "openai" if _iterates_content(tree) else "string"
        """What `normalise` should make of the messages for this template, read off its source."""

    def render(
        self,
        messages: Any,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        *,
        content_format: ContentFormat | None = None,
        **kwargs: Any,
    ) -> str:
        """The prompt text of these messages, checked and brought into `content_format` (None = what this template reads).
        tools: JSON schemas. kwargs: more variables for the template. RequestError (param "messages") with the template's own
        words if it refuses them; param "chat_template_kwargs" if kwargs would replace one of RESERVED."""
        clash = sorted(RESERVED & kwargs.keys())
        if clash:
            raise RequestError(f"chat_template_kwargs must not set {', '.join(clash)}", "chat_template_kwargs")
        if continue_final_message and add_generation_prompt:
            raise RequestError(
                "continue_final_message and add_generation_prompt exclude each other; set add_generation_prompt to false",
                "continue_final_message",
            )
        chat = normalise(messages, content_format or self.content_format)
        if continue_final_message:
            chat = _mark_final(chat)
        scope = {**self.variables, **kwargs}
        try:
            text = self._template.render(
                messages=chat,
                tools=list(tools) if tools else None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **scope,
            )
        except jinja2.TemplateError as e:
            raise RequestError(f"the chat template refuses these messages: {e}", "messages") from e
        except Exception as e:  # a template can raise anything its expressions can
            raise RequestError(f"the chat template fails on these messages: {type(e).__name__}: {e}", "messages") from e
        return _cut_final(text) if continue_final_message else text


def normalise(messages: Any, content_format: ContentFormat = "string") -> list[dict[str, Any]]:
    """Checked copies of chat messages, as templates expect them.

    Text parts become one string, joined by newlines ("string"), or strings become one text part ("openai"). Arguments of
    tool calls are parsed from JSON. RequestError names the message and field; other fields pass through unchanged."""
    if not isinstance(messages, list | tuple) or not messages:
        raise RequestError("messages must be a list of at least one message", "messages")
    return [_message(f"messages[{i}]", m, content_format) for i, m in enumerate(messages)]


def _message(at: str, message: Any, content_format: ContentFormat) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise RequestError(f"{at} must be an object with role and content, not {type(message).__name__}", "messages")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise RequestError(f"{at}.role must be a string such as system, user, assistant or tool", "messages")
    out = {k: v for k, v in message.items() if v is not None}
    content = message.get("content")
    if content is None and role != "assistant":
        raise RequestError(f"{at}.content is missing; only an assistant message may leave it out", "messages")
    out["content"] = _content(f"{at}.content", content, content_format)
    if out.get("tool_calls"):
        out["tool_calls"] = _tool_calls(f"{at}.tool_calls", out["tool_calls"])
    return out


def _content(at: str, content: Any, content_format: ContentFormat) -> Any:
    texts: list[str] = []
    if isinstance(content, str):
        texts = [content]
    elif isinstance(content, list):
        texts = [_text_part(f"{at}[{i}]", part) for i, part in enumerate(content)]
    elif content is not None:
        raise RequestError(f"{at} must be a string or a list of parts, not {type(content).__name__}", "messages")
    if content_format == "openai":
        return [{"type": "text", "text": t} for t in texts]
    return "\n".join(texts)


def _text_part(at: str, part: Any) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else None
    field = {"text": "text", "refusal": "refusal"}.get(kind or "")
    if field is None:
        raise RequestError(f"{at}: parts of type {kind!r} are not supported by this model; send text parts", "messages")
    text = part.get(field)
    if not isinstance(text, str):
        raise RequestError(f"{at}.{field} must be a string", "messages")
    return text


def _tool_calls(at: str, calls: Any) -> list[dict[str, Any]]:
    """Copies whose function arguments are objects: OpenAI clients send them as JSON text, templates read fields."""
    if not isinstance(calls, list):
        raise RequestError(f"{at} must be a list", "messages")
    out = []
    for i, call in enumerate(calls):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise RequestError(f"{at}[{i}].function must be an object with a name", "messages")
        arguments = function.get("arguments") or {}
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except (ValueError, RecursionError) as e:
                raise RequestError(f"{at}[{i}].function.arguments is not JSON: {e}", "messages") from e
        if not isinstance(arguments, dict):
            raise RequestError(f"{at}[{i}].function.arguments must be a JSON object", "messages")
        out.append({**call, "function": {**function, "arguments": arguments}})
    return out


# ---------------------------------------------------------------- continue_final_message


def _mark_final(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same messages, the last text of the last one followed by the mark."""
    content = messages[-1].get("content") if messages else None
    if isinstance(content, list) and content and isinstance(content[-1], Mapping) and isinstance(content[-1].get("text"), str):
        marked: Any = [*content[:-1], {**content[-1], "text": content[-1]["text"] + _END_MARK}]
    elif isinstance(content, str):
        marked = content + _END_MARK
    else:
        raise RequestError("continue_final_message: the final message has no text to continue", "messages")
    return [*messages[:-1], {**messages[-1], "content": marked}]


def _cut_final(text: str) -> str:
    """The rendered text up to the mark; where the template stripped the content, so is what comes back."""
    at = text.rfind(_END_MARK.strip())
    if at < 0:
        raise RequestError("continue_final_message: the chat template does not show the final message's content", "messages")
    return text[:at] if text.startswith(_END_MARK, at) else text[:at].rstrip()


# ---------------------------------------------------------------- the environment


class _Generation(Extension):
    """{% generation %} ... {% endgeneration %} marks assistant text for training; here it is just its body."""

    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Namespace(jinja2.utils.Namespace):
    """namespace() without names that could reach Python's internals."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, values = args[0], dict(*args[1:], **kwargs)
        for name in values:
            _check_name(name)
        jinja2.utils.Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if str(name).startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a chat template cannot set {name!r} on a namespace")


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    environment.globals["namespace"] = _Namespace
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: jinja2's own filter escapes HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _iterates_content(tree: nodes.Template) -> bool:
    """Does the template loop over a message's content (or over a variable set from it)?"""
    names = {
        s.target.name
        for s in tree.find_all(nodes.Assign)
        if isinstance(s.target, nodes.Name) and any(_is_content(e) for e in [s.node, *s.node.find_all(nodes.Expr)])
    }
    for loop in tree.find_all(nodes.For):
        source = loop.iter
        while isinstance(source, nodes.Filter) and source.node is not None:
            source = source.node
        if _is_content(source) or (isinstance(source, nodes.Name) and source.name in names):
            return True
    return False


def _is_content(e: nodes.Node) -> bool:
    if isinstance(e, nodes.Getattr):
        return e.attr == "content"
    return isinstance(e, nodes.Getitem) and isinstance(e.arg, nodes.Const) and e.arg.value == "content"
