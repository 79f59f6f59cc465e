"""From messages to a prompt: what the template gets to see, and its text as token ids."""

from __future__ import annotations

import asyncio
from typing import Any

from thalweg.server.errors import ApiError
from thalweg.server.openai.protocol import ChatFields, ChatRequest, Message
from thalweg.server.openai.serving import INLINE_CHARS, Serving
from thalweg.text.template import RESERVED, ChatTemplate, normalise


class Conversation:
    """Renders chats with the server's template (--chat-template, else the model's)."""

    def __init__(self, serving: Serving) -> None:
        self.serving = serving
        own, model = serving.settings.chat_template, serving.engine.chat_template
        self.template = ChatTemplate(own, model.variables if model else None) if own else model

    async def prompt(self, request: ChatFields) -> dict[str, Any]:
        """The rendered conversation and its token ids, as the engine takes them."""
        tokenizer = self.serving.tokenizer("messages")
        template = self._template(request)
        asked = self.serving.settings.chat_template_content_format
        form = template.content_format if asked == "auto" else "openai" if asked == "openai" else "string"
        messages = normalise([_plain(m) for m in request.messages], form)

        def render() -> dict[str, Any]:
            text = template.render(
                messages,
                tools=self._tools(request),
                add_generation_prompt=request.add_generation_prompt,
                continue_final_message=request.continue_final_message,
                content_format=form,
                **self._variables(request),
            )
            if not text:
                raise ApiError("messages: the chat template made an empty prompt of them", "messages")
            return {"prompt": text, "prompt_token_ids": tokenizer.encode(text, request.add_special_tokens)}

        long = sum(len(str(m.get("content"))) for m in messages) > INLINE_CHARS
        return await asyncio.to_thread(render) if long else render()

    def _template(self, request: ChatFields) -> ChatTemplate:
        if request.chat_template is not None:
            if not self.serving.settings.trust_request_chat_template:
                raise ApiError("chat_template needs a server started with --trust-request-chat-template", "chat_template")
            return ChatTemplate(request.chat_template, self.template.variables if self.template else None)
        if self.template is None:
            raise ApiError(
                "this model has no chat template; start the server with --chat-template, or use /v1/completions", "messages"
            )
        return self.template

    def _variables(self, request: ChatFields) -> dict[str, Any]:
        given = request.chat_template_kwargs or {}
        for name in sorted(RESERVED & given.keys()):
            raise ApiError(f"chat_template_kwargs: {name} is a field of its own", "chat_template_kwargs")
        out = {**(self.serving.settings.default_chat_template_kwargs or {}), **given}
        if isinstance(request, ChatRequest) and request.reasoning_effort is not None:
            out["reasoning_effort"] = request.reasoning_effort
        return out

    def _tools(self, request: ChatFields) -> list[dict[str, Any]] | None:
        if not request.tools or (
            isinstance(request, ChatRequest) and self.serving.settings.exclude_tools_when_tool_choice_none
        ):
            return None
        return [t.model_dump(exclude_none=True) for t in request.tools]


def _plain(message: Message) -> dict[str, Any]:
    """As clients wrote it, less what only replies carry."""
    out = message.model_dump(exclude_none=True, exclude={"annotations", "audio", "function_call", "refusal"})
    if isinstance(message.content, list):
        out["content"] = [{"type": "text", "text": p.text} for p in message.content]
    elif message.content is None and message.refusal:
        out["content"] = message.refusal
    return out
