"""A generation request in tokens: the output of rendering, and the input of /inference/v1/generate."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from pydantic import Field, model_validator

from thalweg.errors import RequestError
from thalweg.params import RequestOutputKind, SamplingParams
from thalweg.server.core.fields import refuse_asked
from thalweg.server.core.request import StreamOptions, check_handover
from thalweg.server.core.schema import Flag, Label, MaxBytes, Number, RequestFields, TokenIds, WireModel
from thalweg.server.errors import ApiError

NOT_YET: dict[str, tuple[Any, ...]] = {"features": ({},)}
"""Fields that change the answer and are not honoured, each with the values that ask for nothing."""
OURS = ("kv_transfer_params", "cache_hit_threshold", "output_kind", "detokenize", "marked_token_ids", "stop_aside")
"""Parameters that say how outputs reach the route: its own business."""
FIELDS = frozenset(SamplingParams.__struct_fields__) - {"extra_args", *OURS}
Json = Annotated[dict[str, Any], MaxBytes(2**22)]


class GenerateRequest(RequestFields):
    token_ids: Annotated[TokenIds, Field(min_length=1)]
    sampling_params: Json
    stream: Flag | None = False
    stream_options: StreamOptions | None = None
    kv_transfer_params: Json | None = None
    cache_hit_threshold: Annotated[Number, Field(ge=0, le=1)] | None = None

    @model_validator(mode="after")
    def _rules(self) -> GenerateRequest:
        check_handover(self.kv_transfer_params, bool(self.stream))
        return self

    @classmethod
    def refuse(cls, body: dict[str, Any]) -> None:
        refuse_asked(body, NOT_YET, {})


class AbortRequest(WireModel):
    request_ids: Annotated[list[Label], Field(max_length=100_000)]


def dump_params(params: SamplingParams) -> dict[str, Any]:
    """Parameters as JSON has them, without those that say nothing."""
    result: dict[str, Any] = msgspec.to_builtins(params, str_keys=True)
    return {k: v for k, v in result.items() if k in FIELDS and v != []}


def read(given: dict[str, Any], stream: bool, **fields: Any) -> SamplingParams:
    """fields: parameters that are fields of the request. ApiError names the parameter. An unknown one may only have a value
    without effect."""
    given = {k: v for k, v in given.items() if k not in OURS}
    for name in sorted(given.keys() - FIELDS):
        if given.pop(name) not in (None, False, 0, "", [], {}):
            where = f"sampling_params.{name[:80]}"
            raise ApiError(f"{where} is not supported by this version; remove it", where)
    try:
        params = SamplingParams.from_optional(**given, **fields)
    except RequestError as e:
        raise _sampling_params_error(str(e), e.param) from None
    except TypeError as e:  # an unknown name within structured_outputs
        raise ApiError(f"sampling_params: {e}", "sampling_params") from None
    params.detokenize = bool(params.stop)
    params.output_kind = RequestOutputKind.DELTA if stream else RequestOutputKind.FINAL_ONLY
    return params


def _sampling_params_error(message: str, param: str | None) -> ApiError:
    return ApiError(f"sampling_params.{message}", f"sampling_params.{param}" if param else "sampling_params")
