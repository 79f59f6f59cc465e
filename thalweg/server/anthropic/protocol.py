"""Requests of the Messages API as clients may send them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from thalweg.server.core.fields import refuse_asked
from thalweg.server.core.schema import Flag, Int32, Label, MaxBytes, Number, Strings, Text, Whole, WireModel
from thalweg.server.errors import ApiError

MAX_MESSAGES = 10_000
MAX_BLOCKS = 4096
NOT_YET: dict[str, tuple[Any, ...]] = {"mcp_servers": ([],), "container": (), "kv_transfer_params": ()}
"""Fields that change the answer and are not honoured, each with the values that ask for nothing."""
BLOCKS = {
    "text": ("text",),
    "image": ("source",),
    "tool_use": ("id", "name"),
    "tool_result": ("tool_use_id",),
    "thinking": ("thinking",),
    "redacted_thinking": (),
}
"""Types of blocks, each with the fields it needs."""
Json = Annotated[dict[str, Any], MaxBytes(2**20)]


class ImageSource(WireModel):
    """Where an image is."""

    type: Literal["base64", "url"]
    media_type: Label | None = None
    data: Text | None = None
    url: Text | None = None

    @model_validator(mode="after")
    def _rules(self) -> ImageSource:
        name = "data" if self.type == "base64" else "url"
        if getattr(self, name) is None:
            raise ValueError(f"a source of type {self.type} needs {name}")
        return self

    @property
    def as_url(self) -> str:
        return self.url or f"data:{self.media_type or 'image/png'};base64,{self.data}"


class ContentBlock(WireModel):
    """A block of any type."""

    type: Literal["text", "image", "tool_use", "tool_result", "thinking", "redacted_thinking"]
    text: Text | None = None
    source: ImageSource | None = None
    id: Label | None = None
    name: Text | None = None
    input: Annotated[Any, MaxBytes(2**20)] = None
    """A call's arguments as the client parsed them: an object, or its text or another value if that failed."""
    tool_use_id: Label | None = None
    content: Text | Annotated[list[ContentBlock], Field(max_length=MAX_BLOCKS)] | None = None
    is_error: Flag | None = None
    thinking: Text | None = None
    signature: Text | None = None
    data: Text | None = None

    @model_validator(mode="after")
    def _rules(self) -> ContentBlock:
        lacking = [name for name in BLOCKS[self.type] if getattr(self, name) is None]
        if lacking:
            raise ValueError(f"a block of type {self.type} needs {' and '.join(lacking)}")
        return self


Blocks = Annotated[list[ContentBlock], Field(max_length=MAX_BLOCKS)]


class AnthropicMessage(WireModel):
    role: Literal["user", "assistant", "system"]
    content: Text | Blocks

    @model_validator(mode="after")
    def _rules(self) -> AnthropicMessage:
        allowed = {
            "user": ("text", "image", "tool_result"),
            "assistant": ("text", "tool_use", "thinking", "redacted_thinking"),
            "system": ("text",),
        }[self.role]
        wrong = next((b.type for b in self.content if b.type not in allowed), None) if isinstance(self.content, list) else None
        if wrong is not None:
            raise ValueError(f"a message of role {self.role} has no blocks of type {wrong}")
        return self


class AnthropicTool(WireModel):
    type: Literal["custom"] | None = None
    name: Label
    description: Text | None = None
    input_schema: Json
    strict: Flag | None = None


class ToolChoice(WireModel):
    type: Literal["auto", "any", "tool", "none"]
    name: Label | None = None
    disable_parallel_tool_use: Flag | None = None


class ThinkingConfig(WireModel):
    type: Literal["enabled", "disabled", "adaptive"]


class OutputConfig(WireModel):
    format: Json | None = None


class CountRequest(WireModel):
    """The fields that decide the prompt."""

    model: Label
    messages: Annotated[list[AnthropicMessage], Field(min_length=1, max_length=MAX_MESSAGES)]
    system: Text | Blocks | None = None
    tools: Annotated[list[AnthropicTool], Field(max_length=1024)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    chat_template_kwargs: Annotated[dict[Label, Any], MaxBytes(2**16), Field(max_length=256)] | None = None

    @classmethod
    def refuse(cls, body: dict[str, Any]) -> None:
        refuse_asked(body, NOT_YET, {})
        _refuse_blocks(body.get("system"), "system")
        messages = body.get("messages")
        for i, message in enumerate(messages if isinstance(messages, list) else ()):
            if isinstance(message, dict):
                _refuse_blocks(message.get("content"), f"messages[{i}].content")
        _drop_tools(body)
        _rename_format(body)

    @model_validator(mode="after")
    def _rules(self) -> CountRequest:
        if isinstance(self.system, list) and any(b.type != "text" for b in self.system):
            raise ApiError("system: its blocks must be of type text", "system")
        names = [t.name for t in self.tools or ()]
        if len(set(names)) < len(names):
            raise ApiError("tools: names must be unique", "tools")
        choice = self.tool_choice
        if choice is None:
            return self
        if choice.type == "tool" and choice.name not in names:
            raise ApiError(f"tool_choice.name: tools has no tool {choice.name!r}", "tool_choice.name")
        if choice.type == "any" and not names:
            raise ApiError("tool_choice: 'any' needs a tool in tools", "tool_choice")
        return self


class MessagesRequest(CountRequest):
    max_tokens: Annotated[Whole, Field(ge=1, lt=2**31)]
    metadata: Annotated[dict[Label, Any], MaxBytes(2**16), Field(max_length=1024)] | None = None
    stop_sequences: Strings | None = None
    stream: Flag | None = False
    temperature: Number | None = None
    top_p: Number | None = None
    top_k: Int32 | None = None
    disable_spec_decode: Flag = False
    cache_retention: Annotated[Number, Field(ge=0, le=86400)] | None = None
    """Set from the longest ttl of cache_control. The whole conversation is kept, with the answer."""

    @classmethod
    def refuse(cls, body: dict[str, Any]) -> None:
        super().refuse(body)
        requested = _read_cache_control(body)
        if requested and body.get("cache_retention") is None:
            body["cache_retention"] = max(requested)


TTLS = {"5m": 300.0, "1h": 3600.0}


def _read_cache_control(body: dict[str, Any]) -> list[float]:
    """Seconds of every cache_control: of the request, and of its tools and blocks. ApiError for an unknown one."""
    places: list[tuple[str, Any]] = [("", body)]
    for name in ("tools", "system", "messages"):
        for i, item in enumerate(body[name] if isinstance(body.get(name), list) else ()):
            places.append((f"{name}[{i}].", item))
            content = item.get("content") if isinstance(item, dict) else None
            places += [(f"{name}[{i}].content[{j}].", b) for j, b in enumerate(content if isinstance(content, list) else ())]
    found = []
    for where, place in places:
        if not isinstance(place, dict) or place.get("cache_control") is None:
            continue
        control, where = place.pop("cache_control"), where + "cache_control"
        if control == {}:
            continue
        if not isinstance(control, dict) or control.get("type") != "ephemeral" or control.get("ttl", "5m") not in TTLS:
            raise ApiError(f'{where}: must be {{"type": "ephemeral"}}, with a ttl of 5m or 1h or none', where)
        found.append(TTLS[control.get("ttl", "5m")])
    return found


def _refuse_blocks(content: Any, where: str, inside: bool = False) -> None:
    """ApiError for a block of an unsupported type, such as a document. inside: the blocks are in a tool's result."""
    for i, block in enumerate(content if isinstance(content, list) else ()):
        if not isinstance(block, dict):
            continue
        kind, at = block.get("type"), f"{where}[{i}]"
        if inside and kind == "image":
            raise ApiError(
                f"{at}: an image in a tool's result is not supported by this version; send it outside the result", at
            )
        if isinstance(kind, str) and kind not in BLOCKS:
            raise ApiError(f"{at}: blocks of type {kind[:64]!r} are not supported by this version; send text", at)
        _refuse_blocks(block.get("content"), f"{at}.content", True)


def _rename_format(body: dict[str, Any]) -> None:
    """`output_format` is the old name of `output_config.format`. ApiError if both are given."""
    form, config = body.pop("output_format", None), body.get("output_config")
    if form is None:
        return
    if isinstance(config, dict) and config.get("format") is not None:
        raise ApiError("output_format: output_config.format is there too; leave out output_format", "output_format")
    body["output_config"] = {**(config if isinstance(config, dict) else {}), "format": form}


def _drop_tools(body: dict[str, Any]) -> None:
    """Remove tools that run at the copied API. Each counts as an unknown field, and is reported."""
    tools = body.get("tools")
    if not isinstance(tools, list):
        return
    body["tools"] = kept = []
    for tool in tools:
        kind = tool.get("type") if isinstance(tool, dict) else None
        if isinstance(kind, str) and kind != "custom":
            body[f"tools[].{kind}"] = None
        else:
            kept.append(tool)
