"""Requests of the Responses API as clients may send them. Hints, such as client_metadata, are unknown fields."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from thalweg.server.core.fields import refuse_asked
from thalweg.server.core.schema import Flag, Int32, Label, MaxBytes, Number, RequestFields, Strings, Text, Whole, WireModel
from thalweg.server.errors import ApiError
from thalweg.server.responses.tools import drop_tools, refuse_choice

MAX_ITEMS = 10_000
MAX_PARTS = 4096
NOT_YET: dict[str, tuple[Any, ...]] = {
    "conversation": (),
    "moderation": (),
    "image": (),
    "media_io_kwargs": ({},),
    "mm_processor_kwargs": ({},),
    "enable_response_messages": (False,),
    "previous_input_messages": ([],),
    "vllm_xargs": ({},),
    "kv_transfer_params": (),
}
"""Fields that change the answer and are not honoured, each with the values that ask for nothing."""
INSTEAD = {"conversation": "previous_response_id", "previous_input_messages": "previous_response_id"}
INCLUDABLE = frozenset(
    {
        "reasoning.encrypted_content",
        "message.output_text.logprobs",
        "file_search_call.results",
        "web_search_call.results",
        "web_search_call.action.sources",
        "message.input_image.image_url",
        "computer_call_output.output.image_url",
        "code_interpreter_call.outputs",
    }
)
"""Supported values of `include`. All but the first two belong to items that an answer here never has."""
ITEMS = {
    "message": ("role", "content"),
    "function_call": ("call_id", "name"),
    "function_call_output": ("call_id", "output"),
    "custom_tool_call": ("call_id", "name", "input"),
    "custom_tool_call_output": ("call_id", "output"),
    "reasoning": (),
    "additional_tools": ("tools",),
    "item_reference": ("id",),
}
"""Types of items, each with the fields it needs."""
PARTS = ("input_text", "input_image", "output_text", "text", "refusal", "summary_text", "reasoning_text")
Json = Annotated[dict[str, Any], MaxBytes(2**20)]


class ResponsePart(WireModel):
    type: Literal["input_text", "input_image", "output_text", "text", "refusal", "summary_text", "reasoning_text"]
    text: Text | None = None
    image_url: Text | None = None
    detail: Label | None = None
    refusal: Text | None = None
    annotations: Annotated[list[Any], MaxBytes(2**20)] | None = None
    logprobs: Annotated[list[Any], MaxBytes(2**24)] | None = None

    @property
    def content_text(self) -> str:
        return (self.refusal if self.type == "refusal" else self.text) or ""

    @model_validator(mode="after")
    def _rules(self) -> ResponsePart:
        name = {"refusal": "refusal", "input_image": "image_url"}.get(self.type, "text")
        if getattr(self, name) is None:
            raise ValueError(f"a part of type {self.type} needs {name}")
        return self


Parts = Annotated[list[ResponsePart], Field(max_length=MAX_PARTS)]


class Item(WireModel):
    """An item of any type."""

    type: Literal[
        "message", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output", "reasoning",
        "additional_tools", "item_reference",
    ] = "message"  # fmt: skip
    id: Label | None = None
    status: Label | None = None
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: Text | Parts | None = None
    phase: Label | None = None
    call_id: Label | None = None
    name: Text | None = None
    namespace: Label | None = None
    arguments: Text | Json | None = None
    input: Text | None = None
    output: Text | Parts | None = None
    summary: Parts | None = None
    encrypted_content: Text | None = None
    tools: Annotated[list[Json], Field(max_length=1024)] | None = None
    """Of additional_tools: tools available from here on."""

    @model_validator(mode="after")
    def _rules(self) -> Item:
        lacking = [name for name in ITEMS[self.type] if getattr(self, name) is None]
        if lacking:
            raise ValueError(f"an item of type {self.type} needs {' and '.join(lacking)}")
        seen = any(p.type == "input_image" for p in self.content or () if isinstance(p, ResponsePart))
        if seen and (self.type != "message" or self.role not in (None, "user")):
            raise ValueError("only messages of role user hold images")
        if any(p.type == "input_image" for p in self.output or () if isinstance(p, ResponsePart)):
            raise ValueError("images in outputs of functions are not supported by this version; send them in a user's message")
        return self


class ReasoningOptions(WireModel):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Label | None = None
    generate_summary: Label | None = None


class TextConfig(WireModel):
    format: Json | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ResponseStreamOptions(WireModel):
    include_obfuscation: Flag | None = None


class InputTokensRequest(RequestFields):
    """The fields that decide the prompt."""

    input: Text | Annotated[list[Item], Field(max_length=MAX_ITEMS)]
    instructions: Text | None = None
    previous_response_id: Label | None = None
    tools: Annotated[list[Json], Field(max_length=1024)] | None = None
    tool_choice: Literal["none", "auto", "required"] | Json | None = None
    parallel_tool_calls: Flag | None = True
    reasoning: ReasoningOptions | None = None
    text: TextConfig | None = None
    truncation: Literal["auto", "disabled"] | None = None
    chat_template_kwargs: Annotated[dict[Label, Any], MaxBytes(2**16), Field(max_length=256)] | None = None

    @classmethod
    def refuse(cls, body: dict[str, Any]) -> None:
        refuse_asked(body, NOT_YET, INSTEAD)
        if body.pop("prompt", None) is not None:
            raise ApiError("prompt.id: prompts are not kept by this version; send it as instructions and input", "prompt.id")
        items = body.get("input")
        for i, item in enumerate(items if isinstance(items, list) else ()):
            if isinstance(item, dict):
                if item.get("type") is None and {k for k, v in item.items() if v is not None} == {"id"}:
                    item["type"] = "item_reference"  # clients may leave that type out
                _refuse_item(item, f"input[{i}]")
                if item.get("type") == "additional_tools":
                    drop_tools(item, body, f"input[{i}].tools")
        refuse_choice(body)
        drop_tools(body, body)

    @property
    def items(self) -> list[Item]:
        """`input` as items."""
        text = self.input
        return [Item(type="message", role="user", content=text)] if isinstance(text, str) else text

    @model_validator(mode="after")
    def _rules(self) -> InputTokensRequest:
        if not self.input and self.previous_response_id is None:
            raise ApiError("input: nothing is said in it", "input")
        return self


class ResponsesRequest(InputTokensRequest):
    stream: Flag | None = False
    stream_options: ResponseStreamOptions | None = None
    store: Flag | None = True
    background: Flag | None = False
    include: Annotated[list[Label], Field(max_length=64)] | None = None
    max_output_tokens: Annotated[Whole, Field(ge=1, lt=2**31)] | None = None
    max_tool_calls: Annotated[Whole, Field(ge=0)] | None = None
    top_logprobs: Annotated[Whole, Field(ge=0, le=20)] | None = None
    temperature: Number | None = None
    top_p: Number | None = None
    top_k: Int32 | None = None
    presence_penalty: Number | None = None
    frequency_penalty: Number | None = None
    repetition_penalty: Number | None = None
    seed: Annotated[Whole, Field(ge=-(2**63), lt=2**63)] | None = None
    logit_bias: Annotated[dict[Annotated[str, Field(max_length=12)], Number], Field(max_length=100_000)] | None = None
    stop: Annotated[str, Field(max_length=65536)] | Strings | None = None
    ignore_eos: Flag = False
    disable_spec_decode: Flag = False
    skip_special_tokens: Flag = True
    include_stop_str_in_output: Flag = False
    structured_outputs: Json | None = None

    # Labels of the copied API that ask for nothing, and come back with the answer.
    metadata: Annotated[dict[Label, Label], Field(max_length=1024)] | None = None
    user: Label | None = None
    safety_identifier: Label | None = None
    service_tier: Label | None = None
    prompt_cache_key: Label | None = None
    prompt_cache_retention: Label | None = None

    @property
    def logprobs_field(self) -> str:
        """The field that asks for log-probabilities. "": none does."""
        if self.top_logprobs:
            return "top_logprobs"
        return "include" if "message.output_text.logprobs" in (self.include or ()) else ""

    @model_validator(mode="after")
    def _more_rules(self) -> ResponsesRequest:
        if self.background and self.store is False:
            raise ApiError("background: its answer is fetched later, which needs store; leave out store=false", "background")
        for name in self.include or ():
            if name not in INCLUDABLE:
                raise ApiError(f"include: {name[:80]!r} is not supported by this version; remove it", "include")
        return self


def _refuse_item(item: dict[str, Any], where: str) -> None:
    """ApiError for an item or a part of an unsupported type, such as an image."""
    kind = item.get("type", "message")
    if isinstance(kind, str) and kind not in ITEMS:
        raise ApiError(f"{where}: items of type {kind[:64]!r} are not supported by this version; remove the item", where)
    for name in ("content", "output"):
        parts = item.get(name)
        for j, part in enumerate(parts if isinstance(parts, list) else ()):
            part_type = part.get("type") if isinstance(part, dict) else None
            if isinstance(part_type, str) and part_type not in PARTS:
                at = f"{where}.{name}[{j}]"
                raise ApiError(f"{at}: parts of type {part_type[:64]!r} are not supported by this version; send text", at)
