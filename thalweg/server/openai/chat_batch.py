"""/v1/chat/completions/batch: several conversations in one call, whole, without tools."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from thalweg.outputs import RequestOutput
from thalweg.server.core.job import GenerationJob
from thalweg.server.core.request import ChatRequest
from thalweg.server.core.schema import MAX_PROMPTS
from thalweg.server.core.serving import Serving
from thalweg.server.core.turn import TurnReply, prepare_chat
from thalweg.server.errors import ApiError
from thalweg.server.openai.answers import head_of
from thalweg.server.openai.chat import ChatReply

ONE = ("stream", "tools", "tool_choice", "prompt_logprobs", "return_token_ids")
"""Fields that one conversation may have, and several together not."""


class BatchChatRequest(ChatRequest):
    """As the chat of one, and `messages` of each."""

    messages: Annotated[list[list[Any]], Field(min_length=1, max_length=MAX_PROMPTS)]  # type: ignore[assignment]


async def chat_batch(serving: Serving, http: Request) -> Response:
    chats, ticket = await serving.read(http, lambda body: _chats(serving, body))
    serving.model_name(chats[0].model)
    found = [await prepare_chat(serving, chat) for chat in chats]
    params = found[0][0]
    if any(p.structured_outputs != params.structured_outputs for p, *_ in found):
        raise ApiError("messages: the form of the answer differs between them; send them one by one", "messages")
    job = serving.job("chatcmpl", http, chats[0], [prompt for _, prompt, _ in found], params, ticket)
    replies = [ChatReply(serving, job, chat, answer) for chat, (_, _, answer) in zip(chats, found, strict=True)]
    return await ChatBatchReply(serving, job, replies).respond(http, False)


class ChatBatchReply(TurnReply):
    def __init__(self, serving: Serving, job: GenerationJob, replies: list[ChatReply]) -> None:
        """replies: the writers of each conversation's choice."""
        super().__init__(serving, job)
        self._replies = replies

    def write_body(self, outputs: list[RequestOutput]) -> dict[str, Any]:
        pairs = enumerate(zip(self._replies, outputs, strict=True))
        choices = [reply.choice(output.outputs[0]) | {"index": i} for i, (reply, output) in pairs]
        usage = self.serving.total_usage(self.job, outputs)
        return {**head_of(self, "chat.completion"), "choices": choices, "usage": usage}


def _chats(serving: Serving, body: dict[str, Any]) -> list[ChatRequest]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(m, list) for m in messages):
        raise ApiError("messages: must be a list of conversations, each a list of messages", "messages")
    if len(messages) > MAX_PROMPTS:
        raise ApiError(f"messages: at most {MAX_PROMPTS} conversations", "messages")
    for name in ONE:
        if body.get(name):
            raise ApiError(f"{name} is not for several conversations; use /v1/chat/completions", name)
    if body.get("n") not in (None, 1):
        raise ApiError("n must be 1 for several conversations", "n")
    return [serving.fields.parse(ChatRequest, {**body, "messages": m}) for m in messages]
