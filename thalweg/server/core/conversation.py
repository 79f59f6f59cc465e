"""From messages to a prompt: the template's inputs, and its text as token ids."""

from __future__ import annotations

import math
from typing import Any

from thalweg.engine.client.pairs import ScoredItem, join_messages
from thalweg.errors import ConfigError
from thalweg.media.kinds import load_kinds, name_kinds
from thalweg.media.kinds.base import MediaItem
from thalweg.server.core.chat_format import ChatFormat
from thalweg.server.core.request import ChatFields, ChatMessage, ChatRequest
from thalweg.server.core.serving import Serving
from thalweg.server.errors import ApiError
from thalweg.server.http.middleware import current_scope, tenant_of
from thalweg.template.chat import CELLS, Chat
from thalweg.template.messages import FORMATS
from thalweg.template.select import Templates
from thalweg.text.encoder import last_chars


class Conversation:
    """Renders chats with the server's template (--chat-template, else the model's), off the event loop."""

    def __init__(self, serving: Serving) -> None:
        """CheckpointError if the model's template does not parse. (--chat-template is checked before the start.) ConfigError
        for a template name the model does not have."""
        self.serving = serving
        own, tokenizer = serving.settings.chat_template, serving.engine.tokenizer
        self.chat = serving.engine.chat
        self.format = FORMATS[serving.settings.chat_template_content_format]
        if own and tokenizer is not None:
            workers = CELLS if self.chat is None else self.chat.workers
            templates = _prefer(own, Templates() if self.chat is None else self.chat.templates)
            if self.chat is not None:
                self.chat.close()
            self.chat = Chat(tokenizer, templates, workers)
            self.chat.prepare()
        elif self.chat is not None:
            self.chat.check()
        self.chat_format = ChatFormat(serving, self.chat)

    async def prompt(self, request: ChatFields) -> dict[str, Any]:
        """The rendered conversation and its token ids, as the engine expects them."""
        tokenizer, chat = self.serving.tokenizer("messages"), self.chat
        assert chat is not None, "there is a tokenizer"
        seen = self.serving.engine.media
        if seen is not None and seen.whole_prompts:
            return await self.item_prompt(
                join_messages(*seen.apart([_plain(m) for m in request.messages], request.media_io_kwargs))
            )
        template, variables = chat.templates.read_kwargs(request.chat_template, self._variables(request))
        if not (chat.trusts(template) or self.serving.settings.trust_request_chat_template):
            raise ApiError("chat_template needs a server started with --trust-request-chat-template", "chat_template")
        if template is None and chat.templates.pick(self._shows_tools(request)) is None:
            raise self._missing_template(chat)
        keep = self.serving.truncation_limit(request) if isinstance(request, ChatRequest) else None
        unbounded = not isinstance(request, ChatRequest) or keep is not None  # whoever counts tokens may have too many
        most_chars = self.serving.engine.config.model.prompt_limit * tokenizer.max_token_chars
        messages, items = await self._read_media(request, keep is not None)
        media = self.serving.engine.media
        expand = media.expand(items) if media is not None and items else None
        prompt = await chat.prompt_async(
            lambda: (messages or [_plain(m) for m in request.messages], self._tools(request)),
            template=template,
            add_generation_prompt=request.add_generation_prompt,
            continue_final_message=request.continue_final_message,
            content_format=self.format,
            kwargs=variables,
            add_special_tokens=request.add_special_tokens,
            most_chars=math.inf if unbounded else most_chars,
            last=None if keep is None else last_chars(keep, tokenizer.max_token_chars),
            expand=expand,
        )
        return media.attach(prompt, items) if media is not None and items else prompt

    async def item_prompt(self, item: ScoredItem) -> dict[str, Any]:
        """The rendered message of a user with these texts and media, for a model that gives vectors."""
        tokenizer, chat, media = self.serving.tokenizer("messages"), self.chat, self.serving.engine.media
        if media is not None and media.whole_prompts:
            if not item.sources:
                return {"prompt": item.text, "prompt_token_ids": tokenizer.encode(item.text)}
            media.check_whole(item.sources, item.text, "content")
            return media.whole_prompt(*await media.read_async(item.sources, tenant_of(current_scope.get())))
        assert chat is not None, "there is a tokenizer"
        if chat.templates.pick(False) is None:
            raise self._missing_template(chat)
        items = await media.read_async(item.sources, tenant_of(current_scope.get())) if media is not None else []
        parts = [{"type": "text", "text": p} if isinstance(p, str) else {"type": p.kind} for p in item.parts]
        prompt = await chat.prompt_async(
            lambda: ([{"role": "user", "content": parts}], None), add_generation_prompt=False, content_format=self.format,
            kwargs=self.serving.settings.default_chat_template_kwargs or {},
            expand=media.expand(items) if media is not None and items else None,
        )  # fmt: skip
        return media.attach(prompt, items) if media is not None and items else prompt

    def _missing_template(self, chat: Chat) -> ApiError:
        pools = self.serving.engine.config.model.pooling is not None
        fix = (
            "name one by chat_template or chat_template_kwargs.chat_template, or start the server with --chat-template NAME"
            if chat.templates.named
            else f"start the server with --chat-template, or {'send input' if pools else 'use /v1/completions'}"
        )
        return ApiError(f"{chat.templates.say_missing()}; {fix}", "messages")

    async def _read_media(self, request: ChatFields, cut: bool) -> tuple[list[Any], list[MediaItem]]:
        """The messages with their media read and taken out; none, if they hold none. cut: it is to be shortened."""
        where, medium = next(
            (
                (f"messages[{i}].content[{j}]", part.medium)
                for i, m in enumerate(request.messages) if isinstance(m.content, list)
                for j, part in enumerate(m.content) if part.medium
            ),
            (None, ""),
        )  # fmt: skip
        if where is None:
            return [], []
        media = self.serving.engine.media
        if media is None:
            words = load_kinds()[medium].plural
            raise ApiError(f"{where}: this model is text-only; {words} are not supported; send text parts", where)
        if cut:
            raise ApiError(
                f"truncate_prompt_tokens: not supported with {name_kinds('or')}; remove the field", "truncate_prompt_tokens"
            )
        messages, sources = media.apart([_plain(m) for m in request.messages], request.media_io_kwargs)
        return messages, await media.read_async(sources, tenant_of(current_scope.get()))

    def _variables(self, request: ChatFields) -> dict[str, Any]:
        given = request.chat_template_kwargs or {}
        out = {**(self.serving.settings.default_chat_template_kwargs or {}), **given}
        if isinstance(request, ChatRequest) and request.reasoning_effort is not None:
            out["reasoning_effort"] = request.reasoning_effort
        return out

    def _shows_tools(self, request: ChatFields) -> bool:
        excluded = self.serving.settings.exclude_tools_when_tool_choice_none
        return bool(request.tools) and not (excluded and isinstance(request, ChatRequest) and request.choice == "none")

    def _tools(self, request: ChatFields) -> list[dict[str, Any]] | None:
        shown = request.tools if self._shows_tools(request) else None
        return [t.model_dump(exclude_none=True) for t in shown] if shown else None


def _prefer(template: str, templates: Templates) -> Templates:
    try:
        return templates.prefer(template)
    except ValueError as e:
        raise ConfigError(f"--chat-template: {e}") from None


def _plain(message: ChatMessage) -> dict[str, Any]:
    """As the client wrote it, without fields of replies. Its reasoning stands under both names that templates read."""
    out = message.model_dump(exclude_none=True, exclude={"annotations", "audio", "function_call", "refusal"})
    if isinstance(message.content, list):
        out["content"] = [
            {"type": "text", "text": p.text} if not p.medium else p.model_dump(exclude_none=True) for p in message.content
        ]
    elif message.content is None and message.refusal:
        out["content"] = message.refusal
    thought = out.get("reasoning") or out.get("reasoning_content")
    return out | ({"reasoning": thought, "reasoning_content": thought} if thought else {})
