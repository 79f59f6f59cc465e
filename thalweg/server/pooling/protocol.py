"""Requests to pooling models: OpenAI's for vectors, Jina's and Cohere's for ranks, vLLM's for the rest."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from thalweg.server.core.fields import refuse_asked
from thalweg.server.core.schema import MAX_PROMPTS, Flag, Label, MaxBytes, RequestFields, Text, TokenIds, Whole
from thalweg.server.errors import ApiError

Input = (
    Text
    | TokenIds
    | Annotated[list[Text], Field(max_length=MAX_PROMPTS)]
    | Annotated[list[TokenIds], Field(max_length=MAX_PROMPTS)]
)
Item = Text | Annotated[dict[Label, Any], MaxBytes(2**20)]
"""A text to compare: text, {"text": ...} or {"content": [text parts]}."""
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
    """Texts or token ids, one or many."""

    input: Input
    add_special_tokens: Flag = True


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
    """Fields of requests that compare texts."""

    instruction: Text | None = None
    """The task for the model, where its form of pairs has a place for one."""


class ScoreRequest(PairRequest):
    """Texts of two sides, by any of the pairs of names in SIDES."""

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
        if not any(a in body and b in body for a, b in SIDES):
            raise ApiError("text_1: required field is missing; send text_1 and text_2, or queries and documents", "text_1")


SIDES = (("text_1", "text_2"), ("data_1", "data_2"), ("queries", "documents"), ("queries", "items"))


class RerankRequest(PairRequest):
    query: Item
    documents: Annotated[list[Item], Field(min_length=1, max_length=MAX_PROMPTS)]
    top_n: Annotated[Whole, Field(ge=0, lt=2**31)] | None = 0
    return_documents: Flag | None = True
    max_tokens_per_query: Annotated[Whole, Field(ge=0, lt=2**31)] = 0
    max_tokens_per_doc: Annotated[Whole, Field(ge=0, lt=2**31)] = 0
