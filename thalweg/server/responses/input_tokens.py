"""POST /v1/responses/input_tokens. It needs no place in the queue: the engine is not involved."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from thalweg.server.core.serving import Serving
from thalweg.server.http.answer import respond
from thalweg.server.http.middleware import owner_of
from thalweg.server.responses.chat_request import check_images, counted_of, tools_of
from thalweg.server.responses.protocol import InputTokensRequest
from thalweg.server.responses.responses import conversation


async def input_tokens(serving: Serving, http: Request) -> Response:
    """The prompt is rendered with its earlier turns and tools, of any length, and counted."""
    request = await serving.bodies.parse(http, lambda body: serving.fields.parse(InputTokensRequest, body))
    serving.model_name(request.model)
    check_images(serving, request)
    messages = conversation(serving, request, owner_of(http.scope))
    chat = counted_of(
        request, tools_of(request, messages.items), messages.items, serving.settings.exclude_tools_when_tool_choice_none
    )
    prompt = await serving.conversation.prompt(chat)
    answer = respond({"object": "response.input_tokens", "input_tokens": len(prompt["prompt_token_ids"])})
    if request.ignored_fields:
        answer.headers["X-Ignored-Fields"] = ", ".join(request.ignored_fields)
    return answer
