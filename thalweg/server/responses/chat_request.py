"""A request of the Responses API as the chat it asks for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from thalweg.server.core.request import ChatFields, ChatRequest
from thalweg.server.core.sampling import shared_fields
from thalweg.server.core.serving import Serving
from thalweg.server.errors import ApiError
from thalweg.server.responses.items import messages_of, text_of
from thalweg.server.responses.protocol import InputTokensRequest, Item, ResponsesRequest
from thalweg.server.responses.tools import Tools

SAME = (
    *shared_fields(ResponsesRequest), "logit_bias", "structured_outputs", "priority", "cache_salt", "prompt_cache_key",
    "prompt_cache_retention",
)  # fmt: skip
ROOM = 8
"""truncation: auto leaves one part in so many of the context for the answer, where max_output_tokens does not say."""


def tools_of(request: InputTokensRequest, items: Sequence[Item]) -> Tools:
    """The tools of the request, and those that its items and earlier ones offer."""
    more = [tool for item in items if item.type == "additional_tools" for tool in item.tools or ()]
    return Tools(request.tools or [], request.tool_choice, more)


def chat_of(request: ResponsesRequest, tools: Tools, items: Sequence[Item]) -> ChatRequest:
    """items: of earlier turns and of this one. ApiError names the field of `request`."""
    fields = _prompt_fields(request, tools, items)
    fields |= {name: getattr(request, name) for name in SAME}
    fields |= {
        "max_tokens": request.max_output_tokens,
        "stream": bool(request.stream or request.background),
        "tool_choice": tools.choice if tools.functions else None,
        "parallel_tool_calls": request.parallel_tool_calls,
        "response_format": _format(request),
        "logprobs": bool(request.logprobs_field),
        "top_logprobs": request.top_logprobs or None,
        "reasoning_effort": request.reasoning.effort if request.reasoning else None,
    }
    chat = ChatRequest.model_validate(fields)
    chat._tool_fields = dict.fromkeys(tools.fields, "tools") if request.dropped_tools else tools.fields
    return chat


def counted_of(request: InputTokensRequest, tools: Tools, items: Sequence[Item], exclude_tools: bool) -> ChatFields:
    """exclude_tools: where none may be called, the template sees none."""
    fields = _prompt_fields(request, tools, items)
    if exclude_tools and tools.choice == "none":
        fields["tools"] = None
    if request.reasoning and request.reasoning.effort:
        fields["chat_template_kwargs"] = {
            "reasoning_effort": request.reasoning.effort, **(fields["chat_template_kwargs"] or {})
        }  # fmt: skip
    return ChatFields.model_validate(fields)


def _prompt_fields(request: InputTokensRequest, tools: Tools, items: Sequence[Item]) -> dict[str, Any]:
    variables = dict(request.chat_template_kwargs or {})
    if request.reasoning and request.reasoning.effort == "none":
        variables.setdefault("enable_thinking", False)
    if request.text and request.text.verbosity:
        variables.setdefault("verbosity", request.text.verbosity)
    messages = messages_of(items, request.instructions)
    if not messages:
        raise ApiError("input: nothing is said in it", "input")
    return {
        "model": request.model,
        "messages": messages,
        "tools": tools.functions or None,
        "chat_template_kwargs": variables or None,
    }


def _format(request: InputTokensRequest) -> dict[str, Any] | None:
    form = request.text and request.text.format
    if not form:
        return None
    if form.get("type") != "json_schema":
        return form
    if not isinstance(form.get("schema"), dict):
        raise ApiError("text.format.schema: must be an object: the JSON schema", "text.format.schema")
    return {"type": "json_schema", "json_schema": {"name": form.get("name"), "schema": form["schema"]}}


async def truncate_items(serving: Serving, request: ResponsesRequest, tools: Tools, items: Sequence[Item]) -> Sequence[Item]:
    """truncation: auto. `items` without as many of the oldest turns as must go for the answer to have room. System texts
    at the beginning stay, and so does the last turn."""
    context = serving.engine.config.model.max_len
    room = min(request.max_output_tokens or context // ROOM, context // 2)
    exclude = serving.settings.exclude_tools_when_tool_choice_none

    tokenizer = serving.engine.tokenizer
    most_chars = context * tokenizer.max_token_chars if tokenizer is not None else math.inf

    async def fits(kept: Sequence[Item]) -> bool:
        if sum(len(text_of(i.content)) + len(text_of(i.output)) for i in kept) > most_chars:
            return False  # it need not be rendered
        prompt = await serving.conversation.prompt(counted_of(request, tools, kept, exclude))
        return len(prompt["prompt_token_ids"]) + room <= context

    if await fits(items):
        return items
    first = ("system", "developer")
    head = next((i for i, m in enumerate(items) if m.role not in first and m.type != "additional_tools"), len(items))
    turns = [i for i, item in enumerate(items) if item.role == "user" and i >= head] or [head]
    low, high = 0, len(turns) - 1  # turns to drop: the fewest that suffice, at most all but the last
    while low < high:
        middle = (low + high) // 2
        if await fits([*items[:head], *items[turns[middle] :]]):
            high = middle
        else:
            low = middle + 1
    return [*items[:head], *items[turns[low] :]]


def check_images(serving: Serving, request: InputTokensRequest) -> None:
    """ApiError for an image that the model cannot see."""
    if serving.engine.media is not None:
        return
    for i, item in enumerate(request.input if isinstance(request.input, list) else ()):
        for j, part in enumerate(item.content if isinstance(item.content, list) else ()):
            if part.type == "input_image":
                at = f"input[{i}].content[{j}]"
                raise ApiError(f"{at}: this model is text-only; images are not supported; send text", at)
