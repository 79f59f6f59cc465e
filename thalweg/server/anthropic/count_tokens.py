"""/v1/messages/count_tokens. It needs no place in the queue: the engine is not involved."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from thalweg.server.anthropic.chat_request import counted_of
from thalweg.server.anthropic.protocol import CountRequest
from thalweg.server.core.serving import Serving
from thalweg.server.http.answer import respond


async def count_tokens(serving: Serving, http: Request) -> Response:
    """The prompt is rendered with its system text, tools and results, of any length, and counted."""
    request = await serving.bodies.parse(http, lambda body: serving.fields.parse(CountRequest, body))
    serving.model_name(request.model)
    chat = counted_of(request, serving.settings.exclude_tools_when_tool_choice_none)
    answer = respond({"input_tokens": len((await serving.conversation.prompt(chat))["prompt_token_ids"])})
    if request.ignored_fields:
        answer.headers["X-Ignored-Fields"] = ", ".join(request.ignored_fields)
    return answer
