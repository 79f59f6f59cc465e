"""Types of request fields, each bounded, and the fields of every dialect's requests. `fields` handles other fields.

Numbers and switches may be written as text ("0.7", "true"), as in vLLM. true does not count as a number.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any

import orjson
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, GetCoreSchemaHandler, PrivateAttr
from pydantic_core import CoreSchema

MAX_PROMPTS = 4096
MAX_TOKENS = 2_000_000

MAX_DIGITS = 32
"""Characters of a number written as text."""
_WHOLE, _DECIMAL = re.compile(r"[+-]?\d+"), re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def _to_bool(value: Any) -> Any:
    """The text "true" and 1 as true. Other values are unchanged."""
    if isinstance(value, str):
        return {"true": True, "false": False}.get(value.lower(), value)
    return bool(value) if type(value) is int and value in (0, 1) else value


def _to_int(value: Any) -> Any:
    """The text "5" and 5.0 as 5. Other values are unchanged."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    whole = isinstance(value, str) and len(value) <= MAX_DIGITS and value.isascii() and _WHOLE.fullmatch(value)
    return int(value) if whole else value


def _to_float(value: Any) -> Any:
    """The text "0.7" as 0.7. Text that does not parse as a number stays as it is."""
    decimal = isinstance(value, str) and len(value) <= MAX_DIGITS and value.isascii() and _DECIMAL.fullmatch(value)
    return float(value) if decimal else value


Flag = Annotated[bool, BeforeValidator(_to_bool)]
Whole = Annotated[int, BeforeValidator(_to_int)]
Text = Annotated[str, Field(max_length=32 * 2**20)]
Label = Annotated[str, Field(max_length=1024)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
TokenIds = Annotated[list[TokenId], Field(max_length=MAX_TOKENS)]
Number = Annotated[float, BeforeValidator(_to_float), Field(allow_inf_nan=False, ge=-1e9, le=1e9)]
Int32 = Annotated[Whole, Field(ge=-(2**31), lt=2**31)]
Strings = Annotated[list[Annotated[str, Field(max_length=65536)]], Field(max_length=1000)]


@dataclass(frozen=True, slots=True)
class MaxBytes:
    """Bounds a field of any JSON type by its bytes as JSON."""

    most: int

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return handler.generate_schema(Annotated[source, AfterValidator(self._check)])

    def _check(self, value: Any) -> Any:
        if len(orjson.dumps(value)) > self.most:
            raise ValueError(f"is longer than {self.most} bytes")
        return value


class WireModel(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")

    _ignored: tuple[str, ...] = PrivateAttr(())

    @property
    def ignored_fields(self) -> tuple[str, ...]:
        """Unknown fields by name, up to a limit."""
        return self._ignored

    @property
    def dropped_tools(self) -> bool:
        """Were some of its tools taken out? Others have moved up then."""
        return any(name.startswith("tools[]") for name in self._ignored)

    @classmethod
    def refuse(cls, body: dict[str, Any]) -> None:
        """Remove fields without effect from `body`. ApiError for an unsupported field that would change the answer."""


class SamplingFields(WireModel):
    """The fields that most dialects name as SamplingParams does."""

    temperature: Number | None = None
    top_p: Number | None = None
    top_k: Int32 | None = None
    min_p: Number | None = None
    frequency_penalty: Number | None = None
    presence_penalty: Number | None = None
    repetition_penalty: Number | None = None
    seed: Annotated[Whole, Field(ge=-(2**63), lt=2**63)] | None = None
    disable_spec_decode: Flag = False


class RequestFields(WireModel):
    """Fields of every dialect about running a request."""

    model: Label | None = None
    truncate_prompt_tokens: Annotated[Whole, Field(ge=-1, lt=2**31)] | None = None
    priority: Int32 = 0
    request_id: Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[\x21-\x7e]+$")] | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
