"""A request of the Messages API as the chat it asks for."""

from __future__ import annotations

from typing import Any

import orjson

from thalweg.server.anthropic.protocol import AnthropicMessage, AnthropicTool, ContentBlock, CountRequest, MessagesRequest
from thalweg.server.core.request import ChatFields, ChatRequest
from thalweg.server.errors import ApiError

BILLING = "x-anthropic-billing-header:"
"""A client's first system block may begin so. It differs per request, and no prefix of the prompt would be found cached."""
CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def chat_of(request: MessagesRequest, effort: str | None = None) -> ChatRequest:
    """ApiError names the field of `request`. effort: `reasoning_effort` with thinking disabled, unless the request sets it."""
    choice, form = request.tool_choice, request.output_config and request.output_config.format
    fields: dict[str, Any] = {
        **_prompt_fields(request),
        "max_tokens": request.max_tokens,
        "stop": request.stop_sequences or None,
        "stream": request.stream,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k,
        "cache_retention": request.cache_retention,
        "disable_spec_decode": request.disable_spec_decode,
        "include_reasoning": not (request.thinking and request.thinking.type == "disabled"),
    }
    disabled = request.thinking is not None and request.thinking.type == "disabled"
    if effort is not None and disabled and "reasoning_effort" not in (request.chat_template_kwargs or {}):
        fields["reasoning_effort"] = effort
    if choice is not None and request.tools:
        fields["tool_choice"] = CHOICES.get(choice.type) or {"type": "function", "function": {"name": choice.name}}
        fields["parallel_tool_calls"] = not choice.disable_parallel_tool_use
    if form:
        if form.get("type") != "json_schema" or not isinstance(form.get("schema"), dict):
            where = "output_config.format"
            raise ApiError(f'{where}: must be {{"type": "json_schema", "schema": {{...}}}}', where)
        fields["response_format"] = {"type": "json_schema", "json_schema": {"name": "output", "schema": form["schema"]}}
    chat = ChatRequest.model_validate(fields)
    chat._tool_fields = {
        t.name: "tools" if request.dropped_tools else f"tools[{i}].input_schema" for i, t in enumerate(request.tools or ())
    }
    return chat


def counted_of(request: CountRequest, exclude_tools: bool) -> ChatFields:
    """exclude_tools: where none may be called, the template sees none."""
    fields = _prompt_fields(request)
    if exclude_tools and request.tool_choice is not None and request.tool_choice.type == "none":
        fields["tools"] = None
    return ChatFields.model_validate(fields)


def _prompt_fields(request: CountRequest) -> dict[str, Any]:
    messages = [m for turn in request.messages for m in _messages(turn)]
    if system := _system(request.system):
        messages.insert(0, {"role": "system", "content": system})
    if not messages:
        raise ApiError("messages: nothing is said in them", "messages")
    variables = dict(request.chat_template_kwargs or {})
    if request.thinking is not None and request.thinking.type != "adaptive":
        variables.setdefault("enable_thinking", request.thinking.type == "enabled")
    continued = messages[-1]["role"] == "assistant" and not messages[-1].get("tool_calls")
    return {
        "model": request.model,
        "messages": messages,
        "tools": [
            {"type": "function", "function": _function(t)} for t in request.tools or ()
        ] or None,
        "chat_template_kwargs": variables or None,
        "continue_final_message": continued,
        "add_generation_prompt": not continued,
    }  # fmt: skip


def _function(tool: AnthropicTool) -> dict[str, Any]:
    strict = {} if tool.strict is None else {"strict": tool.strict}
    return {"name": tool.name, "description": tool.description, "parameters": tool.input_schema, **strict}


def _system(system: str | list[ContentBlock] | None) -> Any:
    if isinstance(system, str):
        first, _, rest = system.partition("\n")
        return rest.lstrip("\n") if first.startswith(BILLING) else system
    return _text([b for b in system or () if not (b.text or "").startswith(BILLING)])


def _text(blocks: list[ContentBlock]) -> Any:
    """A single text unchanged, several as parts for the template to join."""
    parts: list[dict[str, Any]] = [
        {"type": "text", "text": b.text} if b.source is None else {"type": "image_url", "image_url": {"url": b.source.as_url}}
        for b in blocks
    ]
    return parts[0]["text"] if len(parts) == 1 and "text" in parts[0] else parts or ""


def _messages(message: AnthropicMessage) -> list[dict[str, Any]]:
    if isinstance(message.content, str):
        return [{"role": message.role, "content": message.content}]
    if message.role == "assistant":
        return _assistant(message.content)
    out: list[dict[str, Any]] = []
    texts: list[ContentBlock] = []
    for block in message.content:
        if block.type in ("text", "image"):
            texts.append(block)
            continue
        if texts:
            out.append({"role": message.role, "content": _text(texts)})
            texts = []
        out.append({"role": "tool", "tool_call_id": block.tool_use_id, "content": _result(block)})
    return [*out, {"role": message.role, "content": _text(texts)}] if texts or not out else out


def _result(block: ContentBlock) -> str:
    inner = block.content
    turn = inner if isinstance(inner, str) else "\n".join(b.text or "" for b in inner or ())
    return f"Error: {turn}" if block.is_error else turn


def _assistant(blocks: list[ContentBlock]) -> list[dict[str, Any]]:
    """One message. Thinking that the client cannot read either is left out."""
    calls = [
        {"id": b.id, "type": "function", "function": {"name": b.name, "arguments": _arguments(b.input)}}
        for b in blocks if b.type == "tool_use"
    ]  # fmt: skip
    out: dict[str, Any] = {"role": "assistant", "content": _text([b for b in blocks if b.type == "text"])}
    if thought := "".join(b.thinking or "" for b in blocks if b.type == "thinking"):
        out["reasoning"] = thought
    if calls:
        out["tool_calls"] = calls
    return [out]


def _arguments(given: Any) -> dict[str, Any] | str | None:
    """The input of a call. For arguments a client could not parse it is their text. For arguments other than an object it is
    their value."""
    return given if given is None or isinstance(given, dict | str) else orjson.dumps(given).decode()
