"""Requests to pooling models: OpenAI's for vectors, Jina's and Cohere's for ranks, vLLM's for the rest."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from thalweg.server.core.fields import refuse_asked
from thalweg.server.core.request import MAX_MESSAGES, ChatFields, ChatMessage
from thalweg.server.core.schema import MAX_PROMPTS, Flag, Label, MaxBytes, RequestFields, Text, TokenIds, Whole
from thalweg.server.core.unsupported_fields import refuse_parts
from thalweg.server.errors import ApiError

Input = (
    Text
    | TokenIds
    | Annotated[list[Text], Field(max_length=MAX_PROMPTS)]
    | Annotated[list[TokenIds], Field(max_length=MAX_PROMPTS)]
)
Item = Text | Annotated[dict[Label, Any], MaxBytes(2**20)]
"""An item to compare: text, {"text": ...} or {"content": [parts of text and media]}."""
Items = Item | Annotated[list[Item], Field(max_length=MAX_PROMPTS)]

NOT_YET: dict[str, tuple[Any, ...]] = {
    "messages": (),
    "mm_processor_kwargs": ({},),
    "media_io_kwargs": ({},),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "instruction": ("",),
    "data": (),
    "softmax": (),
    "activation": (),
    "normalize": (),
}
"""Fields that change the answer and are not honoured, each with the values that ask for nothing. None always does."""
INSTEAD = {
    "messages": "input", "data": "input", "softmax": "use_activation", "activation": "use_activation",
    "normalize": "use_activation", "instruction": "a query that begins with it",
}  # fmt: skip
"""Supported alternatives."""


class PoolingRequestBase(RequestFields):
    """Fields of all requests to pooling models."""

    user: Label | None = None
    truncation_side: Literal["left", "right"] | None = None
    use_activation: Flag | None = None

    @classmethod
    def refuse(cls, body: dict[str, Any]) -> None:
        refuse_asked(body, {k: v for k, v in NOT_YET.items() if k not in cls.model_fields}, INSTEAD)


class InputRequest(PoolingRequestBase):
    """Texts or token ids, one or many, or a conversation."""

    input: Input | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES)] | None = None
    add_special_tokens: Flag | None = None
    """Default: with `input`."""
    add_generation_prompt: Flag = False
    continue_final_message: Flag = False
    chat_template: Annotated[str, Field(max_length=2**20)] | None = None
    chat_template_kwargs: Annotated[dict[Label, Any], MaxBytes(2**16), Field(max_length=256)] | None = None

    @classmethod
    def refuse(cls, body: dict[str, Any]) -> None:
        super().refuse(body)
        refuse_parts(body)

    @model_validator(mode="after")
    def _has_input(self) -> Self:
        if (self.input is None) == (self.messages is None):
            raise ApiError(
                "input: required field is missing; send input, or messages"
                if self.input is None
                else "messages: send either input or messages",
                "input" if self.input is None else "messages",
            )
        return self

    @property
    def conversation(self) -> ChatFields | None:
        """The fields about a conversation, as chat routes have them. None: the request has `input`."""
        if self.messages is None:
            return None
        return ChatFields(
            messages=self.messages, add_generation_prompt=self.add_generation_prompt,
            continue_final_message=self.continue_final_message, add_special_tokens=bool(self.add_special_tokens),
            chat_template=self.chat_template, chat_template_kwargs=self.chat_template_kwargs,
        )  # fmt: skip


class ClassifyRequest(InputRequest):
    pass


class EmbeddingRequest(InputRequest):
    encoding_format: Literal["float", "base64"] | None = "float"
    dimensions: Annotated[Whole, Field(ge=1, lt=2**31)] | None = None
    embed_dtype: Literal["float32", "float16"] = "float32"
    endianness: Literal["native", "little", "big"] = "native"

    @model_validator(mode="after")
    def _rules(self) -> EmbeddingRequest:
        if self.encoding_format != "base64":
            for name, usual in (("embed_dtype", "float32"), ("endianness", "native")):
                if getattr(self, name) != usual:
                    raise ApiError(f"{name} is for encoding_format=base64; numbers written out have none", name)
        return self


class PoolingRequest(EmbeddingRequest):
    task: Label | None = None


class PairRequest(PoolingRequestBase):
    """Fields of requests that compare texts and media."""

    instruction: Text | None = None
    """The task for the model, where its form of pairs has a place for one."""


class ScoreRequest(PairRequest):
    """Items of two sides, by any of the pairs of names in SIDES."""

    text_1: Items | None = None
    text_2: Items | None = None
    data_1: Items | None = None
    data_2: Items | None = None
    queries: Items | None = None
    documents: Items | None = None
    items: Items | None = None

    @classmethod
    def refuse(cls, body: dict[str, Any]) -> None:
        super().refuse(body)
        if not any(body.get(a) is not None and body.get(b) is not None for a, b in SIDES):
            raise ApiError("text_1: required field is missing; send text_1 and text_2, or queries and documents", "text_1")


SIDES = (("text_1", "text_2"), ("data_1", "data_2"), ("queries", "documents"), ("queries", "items"))


class RerankRequest(PairRequest):
    query: Item
    documents: Annotated[list[Item], Field(min_length=1, max_length=MAX_PROMPTS)]
    top_n: Annotated[Whole, Field(ge=0, lt=2**31)] | None = 0
    return_documents: Flag | None = True
    max_tokens_per_query: Annotated[Whole, Field(ge=0, lt=2**31)] = 0
    max_tokens_per_doc: Annotated[Whole, Field(ge=0, lt=2**31)] = 0
