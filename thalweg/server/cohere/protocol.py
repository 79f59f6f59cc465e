"""Requests of Cohere's API, version 2, as clients may send them. Hints, such as citation_options, are unknown fields."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from thalweg.server.core.fields import refuse_asked
from thalweg.server.core.schema import MAX_PROMPTS, Flag, Int32, Label, MaxBytes, Number, Strings, Text, Whole, WireModel
from thalweg.server.errors import ApiError

MAX_PARTS = 1024
CHAT_NOT_YET: dict[str, tuple[Any, ...]] = {"documents": ([],), "logprobs": (False,), "raw_prompting": (False,)}
EMBED_NOT_YET: dict[str, tuple[Any, ...]] = {"images": ([],)}
"""Fields that change the answer and are not honoured, each with the values that ask for nothing."""
VECTORS = ("float", "base64", "binary", "ubinary")
"""Types of vectors. Those of 8 bits need a calibration that belongs to a model."""
Json = Annotated[dict[str, Any], MaxBytes(2**20)]


class CoherePart(WireModel):
    type: Literal["text", "thinking", "document"]
    text: Text | None = None
    thinking: Text | None = None
    document: Text | Json | None = None

    @model_validator(mode="after")
    def _rules(self) -> CoherePart:
        if getattr(self, self.type) is None:
            raise ValueError(f"a part of type {self.type} needs {self.type}")
        return self


class Function(WireModel):
    name: Text
    arguments: Text | Json | None = None
    """Of a turn that was answered before: they may be cut off, broken or absent."""


class CohereToolCall(WireModel):
    id: Label | None = None
    type: Literal["function"] = "function"
    function: Function


class CohereMessage(WireModel):
    role: Literal["user", "assistant", "system", "tool"]
    content: Text | Annotated[list[CoherePart], Field(max_length=MAX_PARTS)] | None = None
    tool_calls: Annotated[list[CohereToolCall], Field(max_length=MAX_PARTS)] | None = None
    tool_plan: Text | None = None
    tool_call_id: Label | None = None

    @model_validator(mode="after")
    def _rules(self) -> CohereMessage:
        if self.content is None and self.role != "assistant":
            raise ValueError(f"a message of role {self.role} needs content")
        allowed = {"assistant": ("text", "thinking"), "tool": ("text", "document")}.get(self.role, ("text",))
        for part in self.content if isinstance(self.content, list) else ():
            if part.type not in allowed:
                raise ValueError(f"a message of role {self.role} has no parts of type {part.type}")
        return self


class CohereThinking(WireModel):
    type: Literal["enabled", "disabled"]


class ChatV2Request(WireModel):
    model: Label
    messages: Annotated[list[CohereMessage], Field(min_length=1, max_length=10_000)]
    stream: Flag | None = False
    tools: Annotated[list[Json], Field(max_length=1024)] | None = None
    tool_choice: Literal["REQUIRED", "NONE"] | None = None
    strict_tools: Flag | None = None
    response_format: Json | None = None
    max_tokens: Annotated[Whole, Field(ge=1, lt=2**31)] | None = None
    stop_sequences: Strings | None = None
    temperature: Number | None = None
    seed: Annotated[Whole, Field(ge=0, lt=2**63)] | None = None
    frequency_penalty: Number | None = None
    presence_penalty: Number | None = None
    k: Int32 | None = None
    p: Number | None = None
    thinking: CohereThinking | None = None
    priority: Int32 = 0
    disable_spec_decode: Flag = False

    @classmethod
    def refuse(cls, body: dict[str, Any]) -> None:
        refuse_asked(body, CHAT_NOT_YET, {})
        messages = body.get("messages")
        for i, message in enumerate(messages if isinstance(messages, list) else ()):
            _refuse_parts(message, f"messages[{i}]")


class EmbedInput(WireModel):
    content: Annotated[list[CoherePart], Field(min_length=1, max_length=MAX_PARTS)]


class EmbedRequest(WireModel):
    model: Label
    texts: Annotated[list[Text], Field(max_length=MAX_PROMPTS)] | None = None
    inputs: Annotated[list[EmbedInput], Field(max_length=MAX_PROMPTS)] | None = None
    input_type: Label | None = None
    output_dimension: Annotated[Whole, Field(ge=1, lt=2**31)] | None = None
    embedding_types: Annotated[list[Label], Field(min_length=1, max_length=16)] | None = None
    truncate: Literal["NONE", "START", "END"] = "END"
    max_tokens: Annotated[Whole, Field(ge=1, lt=2**31)] | None = None
    priority: Int32 = 0

    @classmethod
    def refuse(cls, body: dict[str, Any]) -> None:
        refuse_asked(body, EMBED_NOT_YET, {"images": "texts"})
        inputs = body.get("inputs")
        for i, one in enumerate(inputs if isinstance(inputs, list) else ()):
            _refuse_parts(one, f"inputs[{i}]")

    @property
    def input_texts(self) -> list[str]:
        """The texts."""
        return self.texts or ["\n".join(p.text or "" for p in i.content) for i in self.inputs or ()]

    @model_validator(mode="after")
    def _rules(self) -> EmbedRequest:
        if (self.texts is None) == (self.inputs is None):
            raise ApiError("texts: one of texts and inputs is needed", "texts")
        if not self.input_texts:
            raise ApiError("texts: must not be empty", "texts")
        for kind in self.embedding_types or ():
            if kind not in VECTORS:
                raise ApiError(f"embedding_types: {kind[:40]!r} is not one of {', '.join(VECTORS)}", "embedding_types")
        return self


def _refuse_parts(holder: Any, where: str) -> None:
    """ApiError for a part of an unsupported type, such as an image."""
    parts = holder.get("content") if isinstance(holder, dict) else None
    for j, part in enumerate(parts if isinstance(parts, list) else ()):
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(kind, str) and kind not in ("text", "thinking", "document"):
            at = f"{where}.content[{j}]"
            raise ApiError(f"{at}: parts of type {kind[:64]!r} are not supported by this version; send text", at)
