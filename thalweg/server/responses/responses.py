"""POST /v1/responses."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

import orjson
from starlette.requests import Request
from starlette.responses import Response

from thalweg.server.core.serving import Serving
from thalweg.server.core.turn import prepare_chat
from thalweg.server.errors import ApiError
from thalweg.server.http.answer import EventStream
from thalweg.server.http.middleware import owner_of
from thalweg.server.responses.chat_request import chat_of, check_images, tools_of, truncate_items
from thalweg.server.responses.errors import ERRORS
from thalweg.server.responses.items import dump_item
from thalweg.server.responses.protocol import InputTokensRequest, Item, ResponsesRequest
from thalweg.server.responses.references import resolve
from thalweg.server.responses.run import ResponseReply, missing
from thalweg.server.responses.store import StoredResponse, store

NO_STORE = "background: this server keeps no responses (--responses-store-bytes 0), so no client could fetch the answer"

NOT_SCORED = (
    "log-probabilities are supported for text-only answers, and this model's turns may have reasoning or calls; use "
    "/v1/chat/completions"
)


@dataclass(frozen=True, slots=True)
class ConversationItems:
    """All items of a conversation, the last turn's as they are kept."""

    items: list[Item]
    new: list[dict[str, object]]
    before: StoredResponse | None


async def responses(serving: Serving, http: Request) -> Response:
    request, ticket = await serving.read(http, lambda body: serving.fields.parse(ResponsesRequest, body))
    serving.model_name(request.model)
    if request.background and not store(serving).limit:
        raise ApiError(NO_STORE, "background")
    check_images(serving, request)
    owner = owner_of(http.scope)
    messages = conversation(serving, request, owner)
    tools = tools_of(request, messages.items)
    items = await truncate_items(serving, request, tools, messages.items) if request.truncation == "auto" else messages.items
    chat = chat_of(request, tools, items)
    params, prompt, answer = await prepare_chat(serving, chat)
    if request.logprobs_field and not answer.plain:
        raise ApiError(f"{request.logprobs_field}: {NOT_SCORED}", request.logprobs_field)
    id = f"resp_{uuid.uuid4().hex}"
    job = serving.job("resp", http, chat, [prompt], params, ticket, id)
    turn = StoredResponse(id, orjson.dumps(messages.new), b"", messages.before, bool(request.background))
    reply = ResponseReply(serving, job, request, answer, tools, turn, owner)
    if not request.background:
        return await reply.respond(http, bool(request.stream), request.ignored_fields)
    visit = http.scope["thalweg.visit"].handed_over()
    body = reply.start_in_background()
    assert turn.task is not None
    turn.task.add_done_callback(lambda _: visit.close())
    ignored = {"X-Ignored-Fields": ", ".join(request.ignored_fields)} if request.ignored_fields else {}
    if request.stream and turn.log is not None:
        return EventStream(turn.log.read(), ignored, ERRORS)
    return Response(body, 200, ignored, media_type="application/json")


def conversation(serving: Serving, request: InputTokensRequest, owner: str) -> ConversationItems:
    """ApiError 404 if previous_response_id or a referenced item is not kept, 400 if that response has not ended."""
    before = None
    if (id := request.previous_response_id) is not None:
        before = store(serving).get(owner, id)
        if before is None:
            e = missing(id, store(serving).limit)
            raise ApiError(f"previous_response_id: {e.message}", "previous_response_id", 404)
        if before.running:
            raise ApiError("previous_response_id: that response has not ended yet", "previous_response_id")
    earlier = [Item.model_validate(item) for item in before.history()] if before is not None else []
    new = resolve(store(serving), owner, request.items)
    return ConversationItems([*earlier, *new], [dump_item(item) for item in new], before)
