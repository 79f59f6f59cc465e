"""Requests for text, in the one language of all dialects: every field typed and bounded.

The fields have OpenAI's names. A dialect with other names translates its requests into a ChatRequest. Here are types, shapes
and outer bounds. SamplingParams has the exact ranges of sampling.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, PrivateAttr, create_model, model_validator

from thalweg.errors import RequestError
from thalweg.media.kinds import check_request_decoding
from thalweg.server.core.retention import PAUSE_SECONDS, RETENTIONS, RequestExtensions
from thalweg.server.core.schema import (
    Flag,
    Int32,
    Label,
    MaxBytes,
    Number,
    RequestFields,
    SamplingFields,
    Strings,
    Text,
    TokenIds,
    Whole,
    WireModel,
)  # fmt: skip
from thalweg.server.core.unsupported_fields import MEDIA, TEXTS, drop_tools, refuse, refuse_parts
from thalweg.server.errors import ApiError

MAX_MESSAGES = 10_000
MAX_PARTS = 1024
Json = Annotated[dict[str, Any], MaxBytes(2**20)]


class OpenAIBody(WireModel):
    """A body with OpenAI's field names."""

    @classmethod
    def refuse(cls, body: dict[str, Any]) -> None:
        refuse(body, cls.model_fields)


class StreamOptions(WireModel):
    include_usage: Flag | None = False
    continuous_usage_stats: Flag | None = False


def check_handover(transfer: dict[str, Any] | None, stream: bool) -> None:
    """ApiError for a stream of a request that another server continues: its answer names the hand over at the end."""
    if stream and transfer and transfer.get("do_remote_decode"):
        name = "kv_transfer_params"
        raise ApiError(f"{name}: an answer with do_remote_decode cannot be streamed; omit stream", name)


class GenerationRequest(SamplingFields, RequestFields, OpenAIBody):
    """Fields of both completions and chat."""

    stream: Flag | None = False
    stream_options: StreamOptions | None = None

    n: Annotated[Whole, Field(ge=1, le=16384)] | None = 1
    frequency_penalty: Number | None = 0.0
    presence_penalty: Number | None = 0.0
    logit_bias: Annotated[dict[Annotated[str, Field(max_length=12)], Number], Field(max_length=100_000)] | None = None

    stop: Annotated[str, Field(max_length=65536)] | Strings | None = None
    stop_token_ids: TokenIds | None = None
    include_stop_str_in_output: Flag = False
    ignore_eos: Flag = False
    min_tokens: Int32 = 0
    skip_special_tokens: Flag = True
    spaces_between_special_tokens: Flag = True
    bad_words: Annotated[list[Label], Field(max_length=1000)] | None = None
    allowed_token_ids: TokenIds | None = None
    prompt_logprobs: Int32 | None = None
    thinking_token_budget: Annotated[Whole, Field(ge=0, lt=2**31)] | None = None

    cache_retention: Annotated[Number, Field(ge=0, le=86400)] | None = None
    kv_transfer_params: Json | None = None
    cache_hit_threshold: Annotated[Number, Field(ge=0, le=1)] | None = None

    response_format: Json | None = None
    structured_outputs: Json | None = None
    guided_json: Annotated[str, Field(max_length=2**20)] | Json | None = None
    guided_regex: Annotated[str, Field(max_length=2**20)] | None = None
    guided_choice: Annotated[list[Annotated[str, Field(max_length=65536)]], Field(min_length=1, max_length=100_000)] | None = (
        None
    )
    guided_grammar: Annotated[str, Field(max_length=2**20)] | None = None
    guided_whitespace_pattern: Label | None = None

    echo: Flag | None = False
    return_tokens_as_token_ids: Flag | None = None
    return_token_ids: Flag | None = None

    # Labels of the copied API that ask for nothing.
    user: Label | None = None
    metadata: Annotated[dict[Label, Any], MaxBytes(2**16), Field(max_length=1024)] | None = None
    store: Flag | None = None
    service_tier: Label | None = None
    safety_identifier: Label | None = None
    prompt_cache_key: Label | None = None
    prompt_cache_retention: Label | None = None
    session_id: Label | None = None
    nvext: RequestExtensions | None = None

    @property
    def hinted_priority(self) -> int:
        """`priority`, or the negated priority of Dynamo's hints. Lower is sooner."""
        hints = self.nvext and self.nvext.agent_hints
        return self.priority or (-(hints.priority or 0) if hints else 0)

    @model_validator(mode="after")
    def _rules(self) -> GenerationRequest:
        if self.stream_options is not None and not self.stream:
            raise ApiError("stream_options is only for stream=true", "stream_options")
        if self.cache_retention is None and self.prompt_cache_retention is not None:
            self.cache_retention = RETENTIONS.get(self.prompt_cache_retention)
        if self.cache_retention is None and (self.prompt_cache_key or self.session_id):
            self.cache_retention = PAUSE_SECONDS
        check_handover(self.kv_transfer_params, bool(self.stream))
        if self.prompt_logprobs is not None:
            if self.stream:
                raise ApiError("prompt_logprobs cannot be streamed; leave out stream", "prompt_logprobs")
            if self.prompt_logprobs < -1:
                raise ApiError("prompt_logprobs must be -1 (the whole vocabulary) or more", "prompt_logprobs")
        return self


class MediaUrl(WireModel):
    url: Text


class DetailedMediaUrl(MediaUrl):
    detail: Label | None = None


class MediaFile(WireModel):
    """A file in base64. Its format is detected from the bytes."""

    data: Text
    format: Label | None = None


_FORMS: dict[str, Any] = {"url": MediaUrl | Text, "detailed url": DetailedMediaUrl | Text, "file": MediaFile}
"""`PartType.form` -> the type of the field."""


class PartBase(WireModel):
    """A part of a message: a text, or an item of media."""

    type: str
    text: Text | None = None
    detail: Label | None = None

    @property
    def medium(self) -> str:
        """The kind of media. "": it is a text."""
        return MEDIA[self.type][0] if self.type in MEDIA else ""

    @model_validator(mode="after")
    def _rules(self) -> Self:
        name = MEDIA[self.type][1].field if self.type in MEDIA else "text"
        if getattr(self, name) is None:
            raise ValueError(f"a part of type {self.type} needs {name}")
        return self


if TYPE_CHECKING:
    Part = PartBase
else:  # a field for each kind of media, of which installed packages may add some
    Part = create_model(
        "Part", __base__=PartBase, type=(Literal[(*TEXTS, *MEDIA)], ...),
        **{part.field: (_FORMS[part.form] | None, None) for _, part in MEDIA.values()},
    )  # fmt: skip


class FunctionCall(WireModel):
    """Of a turn that was answered before, so arguments may be cut off, broken or absent."""

    name: Text
    arguments: Text | Json | None = None


class MessageToolCall(WireModel):
    id: Label | None = None
    type: Literal["function"] = "function"
    function: FunctionCall


class EarlierSpeech(WireModel):
    """Of a reply that was spoken, sent back as history. The model reads its text."""

    id: Label | None = None
    data: Text | None = None
    expires_at: Annotated[Whole, Field(ge=0, le=1 << 40)] | None = None
    """Unix time in seconds. Not read: the transcript is what counts."""
    transcript: Text | None = None


class ChatMessage(WireModel):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text | Annotated[list[Part], Field(max_length=MAX_PARTS)] | None = None
    name: Label | None = None
    tool_call_id: Label | None = None
    tool_calls: Annotated[list[MessageToolCall], Field(max_length=MAX_PARTS)] | None = None
    reasoning: Text | None = None
    reasoning_content: Text | None = None
    # Fields of replies, so that a reply can be sent back as history. They must be empty.
    refusal: Text | None = None
    annotations: Annotated[list[Any], MaxBytes(2**20), Field(max_length=1024)] | None = None
    function_call: None = None
    audio: EarlierSpeech | None = None

    @model_validator(mode="after")
    def _rules(self) -> ChatMessage:
        if (message := self.audio) is not None and not self.content:
            if not message.transcript:
                raise ValueError("earlier speech is not kept here: send its transcript as content")
            self.content = message.transcript
        if self.content is None and self.role != "assistant":
            raise ValueError(f"a message of role {self.role} needs content")
        if self.tool_calls and self.role != "assistant":
            raise ValueError("tool_calls belong to messages of role assistant")
        return self


class FunctionDefinition(WireModel):
    name: Label
    description: Text | None = None
    parameters: Annotated[dict[Label, Any], MaxBytes(2**20), Field(max_length=1024)] | None = None
    strict: Flag | None = None


class Tool(WireModel):
    type: Literal["function"] = "function"
    function: FunctionDefinition


class FunctionName(WireModel):
    name: Label


class NamedTool(WireModel):
    type: Literal["function"] = "function"
    function: FunctionName


class ChatFields(OpenAIBody):
    """Fields of both chat and tokenising a chat."""

    @classmethod
    def refuse(cls, body: dict[str, Any]) -> None:
        super().refuse(body)
        drop_tools(body)

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES)]
    tools: Annotated[list[Tool], Field(max_length=1024)] | None = None
    add_generation_prompt: Flag = True
    continue_final_message: Flag = False
    add_special_tokens: Flag = False
    chat_template: Annotated[str, Field(max_length=2**20)] | None = None
    chat_template_kwargs: Annotated[dict[Label, Any], MaxBytes(2**16), Field(max_length=256)] | None = None
    media_io_kwargs: Annotated[dict[Label, Any], MaxBytes(2**12), Field(max_length=16)] | None = None
    """Settings of decoding by kind of media, which replace those of the operator."""

    @model_validator(mode="after")
    def _chat_rules(self) -> ChatFields:
        if self.media_io_kwargs:
            try:
                check_request_decoding(self.media_io_kwargs)
            except RequestError as e:
                raise ApiError(str(e), "media_io_kwargs") from e
        if self.continue_final_message and self.add_generation_prompt:
            raise ApiError("continue_final_message needs add_generation_prompt=false", "continue_final_message")
        return self


class ChatRequest(GenerationRequest, ChatFields):
    @classmethod
    def refuse(cls, body: dict[str, Any]) -> None:
        super().refuse(body)
        refuse_parts(body)

    max_tokens: Annotated[Whole, Field(ge=1, lt=2**31)] | None = None
    max_completion_tokens: Annotated[Whole, Field(ge=1, lt=2**31)] | None = None
    logprobs: Flag | None = False
    top_logprobs: Annotated[Whole, Field(ge=-1, lt=2**31)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: Flag | None = True
    include_reasoning: Flag | None = True
    modalities: Annotated[list[Label], Field(max_length=8)] | None = None
    audio: Json | None = None
    """How the answer is spoken, with modalities that include it."""
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None

    @property
    def choice(self) -> str:
        """none | auto | required | named: the tools it may call."""
        if not self.tools:
            return "none"
        return "named" if isinstance(self.tool_choice, NamedTool) else self.tool_choice or "auto"

    _tool_fields: dict[str, str] = PrivateAttr(default_factory=dict)

    @property
    def tool_fields(self) -> dict[str, str]:
        """The field of each tool's schema as the client wrote it, by the tool's name. "tools" where its place is not known."""
        if self._tool_fields:
            return self._tool_fields
        names = [t.function.name for t in self.tools or ()]
        return {n: "tools" if self.dropped_tools else f"tools[{i}].function.parameters" for i, n in enumerate(names)}

    @model_validator(mode="after")
    def _tool_rules(self) -> ChatRequest:
        names = [t.function.name for t in self.tools or ()]
        if isinstance(self.tool_choice, NamedTool) and self.tool_choice.function.name not in names:
            raise ApiError(f"tool_choice: tools has no function {self.tool_choice.function.name!r}", "tool_choice")
        if self.tool_choice == "required" and not names:
            raise ApiError("tool_choice: 'required' needs a function in tools", "tool_choice")
        if len(set(names)) < len(names):
            raise ApiError("tools: names of functions must be unique", "tools")
        if self.cache_retention is None and self.choice != "none":
            self.cache_retention = PAUSE_SECONDS
        return self

    @model_validator(mode="after")
    def _logprob_rules(self) -> ChatRequest:
        if self.top_logprobs and not self.logprobs:
            raise ApiError("top_logprobs needs logprobs=true", "top_logprobs")
        return self
