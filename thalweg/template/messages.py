"""Checks chat messages and converts them to the form that templates read. Imports no template library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from thalweg.errors import RequestError
from thalweg.template.arguments import read_arguments

ContentFormat = Literal["string", "openai"]
FORMATS: dict[str, ContentFormat | None] = {"auto": None, "string": "string", "openai": "openai"}
"""Name of the option -> format. auto: the format that the template reads."""
"""Format of message content for a template: one string, or a list of typed parts."""
ARGUMENTS = frozenset({"messages", "tools", "add_generation_prompt", "continue_final_message", "content_format"})
FUNCTIONS = frozenset({"raise_exception", "strftime_now", "namespace", "range", "dict", "lipsum", "cycler", "joiner"})
RESERVED = ARGUMENTS | FUNCTIONS
"""Names that template keyword arguments may not replace. They may not begin with an underscore either."""


def check_variables(given: Mapping[str, Any], also: Mapping[str, Any] | None = None) -> None:
    """RequestError (param "chat_template_kwargs") if these keyword arguments would replace a reserved name, or one in
    `also`."""
    for name in given:
        if not isinstance(name, str) or not name.isidentifier() or name.startswith("_"):
            raise RequestError(f"chat_template_kwargs: {name!r} is not a name a template can read", "chat_template_kwargs")
    clash = sorted((RESERVED | set(also or ())) & given.keys())
    if clash:
        raise RequestError(f"chat_template_kwargs must not set {', '.join(clash)}", "chat_template_kwargs")


def normalise(
    messages: Any, content_format: ContentFormat = "string", signs: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """Checked copies of chat messages, in the form that templates expect.

    Text parts become one string, joined by newlines ("string"), or strings become one text part ("openai"). Arguments of tool
    calls are parsed from JSON, and stay text if not an object. signs: kind of media -> its placeholder in a string, for parts
    {"type": KIND}. RequestError names the message and field. Other fields pass through unchanged."""
    if not isinstance(messages, list | tuple) or not messages:
        raise RequestError("messages must be a list of at least one message", "messages")
    return [_message(f"messages[{i}]", m, content_format, signs or {}) for i, m in enumerate(messages)]


def _message(at: str, message: Any, content_format: ContentFormat, signs: Mapping[str, str]) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise RequestError(f"{at} must be an object with role and content, not {type(message).__name__}", "messages")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise RequestError(f"{at}.role must be a string such as system, user, assistant or tool", "messages")
    out = {k: v for k, v in message.items() if v is not None}
    content = message.get("content")
    if content is None and role != "assistant":
        raise RequestError(f"{at}.content is missing; only an assistant message may omit it", "messages")
    out["content"] = _content(f"{at}.content", content, content_format, signs)
    if out.get("tool_calls"):
        out["tool_calls"] = _tool_calls(f"{at}.tool_calls", out["tool_calls"])
    return out


def _content(at: str, content: Any, content_format: ContentFormat, signs: Mapping[str, str]) -> Any:
    texts: list[str] = []
    media = [{"type": kind} for kind in signs]
    if isinstance(content, list) and any(part in media for part in content):
        if content_format == "string":
            return "\n".join(signs[p["type"]] if p in media else _text_part(f"{at}[{i}]", p) for i, p in enumerate(content))
        return [p if p in media else {"type": "text", "text": _text_part(f"{at}[{i}]", p)} for i, p in enumerate(content)]
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
    """Copies with arguments as objects: clients send JSON text, and templates read fields. Other text stays unchanged."""
    if not isinstance(calls, list):
        raise RequestError(f"{at} must be a list", "messages")
    out = []
    for i, call in enumerate(calls):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise RequestError(f"{at}[{i}].function must be an object with a name", "messages")
        try:
            arguments = read_arguments(function.get("arguments"))
        except TypeError as e:
            raise RequestError(f"{at}[{i}].function.arguments must be JSON text or an object, not {e}", "messages") from None
        out.append({**call, "function": {**function, "arguments": arguments}})
    return out
