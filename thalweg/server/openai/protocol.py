"""Requests of the OpenAI API that no other dialect shares. `core/request` has those of chats."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from thalweg.server.core.request import ChatFields, GenerationRequest, OpenAIBody
from thalweg.server.core.schema import MAX_PROMPTS, Flag, Int32, Label, Text, TokenIds, Whole
from thalweg.server.errors import ApiError


class CompletionRequest(GenerationRequest):
    prompt: (
        Text
        | TokenIds
        | Annotated[list[Text], Field(max_length=MAX_PROMPTS)]
        | Annotated[list[TokenIds], Field(max_length=MAX_PROMPTS)]
    )
    max_tokens: Annotated[Whole, Field(ge=0, lt=2**31)] | None = 16
    logprobs: Annotated[Whole, Field(ge=-1, lt=2**31)] | None = None
    best_of: Int32 | None = None
    add_special_tokens: Flag = True
    decoder_prompt: Text | TokenIds | None = None
    """Of models with a text encoder, which reads `prompt`: the beginning of the answer, such as its language."""

    @model_validator(mode="after")
    def _completion_rules(self) -> CompletionRequest:
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise ApiError("best_of other than n is not supported; ask for n choices and pick", "best_of")
        if self.max_tokens == 0 and not self.echo:
            raise ApiError("max_tokens must be at least 1 (0 only with echo, to score a prompt)", "max_tokens")
        return self


class TokenizeText(OpenAIBody):
    model: Label | None = None
    prompt: Text
    add_special_tokens: Flag = True
    return_token_strs: Flag | None = False


class TokenizeChat(ChatFields):
    model: Label | None = None
    return_token_strs: Flag | None = False


class DetokenizeRequest(OpenAIBody):
    model: Label | None = None
    tokens: TokenIds
