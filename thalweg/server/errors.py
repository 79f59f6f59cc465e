"""Errors as clients see them: the OpenAI error object, with the field in `param`, and never a traceback or a path.

Turns the engine's, pydantic's and the framework's exceptions into `ApiError`. Knows no endpoint.
"""

from __future__ import annotations

import logging
import traceback
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import orjson
from pydantic import BaseModel, ValidationError

from thalweg.errors import EngineDeadError, RequestError, TemplateLimitError, UnavailableError
from thalweg.params import StructuredOutputsParams

log = logging.getLogger(__name__)
stacks = logging.getLogger(f"{__name__}.stacks")
"""Logger for the origin of answered errors, at level DEBUG (--log-error-stack)."""

GRAMMAR = "structured_outputs: "
"""How an engine's words about a grammar begin."""
TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    412: "PreconditionFailedError",
    413: "RequestTooLargeError",
    408: "RequestTimeoutError",
    415: "UnsupportedMediaTypeError",
    417: "ExpectationFailedError",
    429: "RateLimitError",
    431: "RequestTooLargeError",
    499: "ClientClosedRequest",
    500: "InternalServerError",
    501: "NotImplementedError",
    503: "ServiceUnavailableError",
}


class ApiError(Exception):
    """An answer of `status` with the OpenAI error object. retry_after: seconds, for 429 and 503."""

    def __init__(self, message: str, param: str | None = None, status: int = 400, retry_after: int | None = None) -> None:
        self.message, self.param, self.status, self.retry_after = message, param, status, retry_after
        super().__init__(message)

    def body(self) -> dict[str, Any]:
        kind = TYPES.get(self.status) or HTTPStatus(self.status).phrase
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.status}}

    def bytes(self) -> bytes:
        return orjson.dumps(self.body())


def translate(error: BaseException) -> ApiError:
    """Any exception as ApiError. An unexpected one is logged in full here, and the client gets no detail."""
    if stacks.isEnabledFor(logging.DEBUG):  # %r: a message may hold a client's text, and its lines must not look like ours
        stacks.info("answered with an error: %.1000r\n%s", error, "".join(traceback.format_tb(error.__traceback__)))
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RequestError):
        return ApiError(str(error), error.param)
    if isinstance(error, ValidationError):
        return from_validation(error)
    if isinstance(error, UnavailableError):
        return ApiError(str(error), status=503, retry_after=1)
    if isinstance(error, TemplateLimitError):
        log.error("%s", error)
        return ApiError(f"{error}; this is the server's doing, not the request's", status=500)
    number = uuid.uuid4().hex[:12]
    if isinstance(error, EngineDeadError):
        log.error("error %s: no answer of the engine: %s", number, error)
        what = str(error) if str(error).startswith("this request ") else "the engine has stopped"
    else:
        log.error("error %s: request failed", number, exc_info=error)
        what = "internal error"
    return ApiError(f"{what}; the server's log says more under error {number}", status=500)


@dataclass(frozen=True)
class ErrorForm:
    """Error format of one dialect: its names, types and shapes."""

    body: Callable[[ApiError], Any]
    """The JSON of an answer."""
    frame: Callable[[ApiError], bytes]
    """The frames that end a stream which has begun."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Fields of core's requests -> as clients of this API write them."""
    reword: Callable[[ApiError], ApiError | None] = lambda error: None
    """Errors that need other words than another name. None: no such error."""

    def translate(self, error: BaseException) -> ApiError:
        """Any exception as ApiError, its field named as the client wrote it."""
        e = translate(error)
        if e.param is None or not isinstance(error, RequestError | ApiError):
            return e
        if (other := self.reword(e)) is not None:
            return other
        name = self.names.get(e.param)
        if name is None:
            return e
        return ApiError(e.message.replace(e.param, name, 1), name, e.status, e.retry_after)


def type_of(types: Mapping[int, str], status: int) -> str:
    """The type of an error: that of its status, else of 400 or 500."""
    return types.get(status) or types[status // 100 * 100]


def of_grammar(error: str | None, requested: StructuredOutputsParams | None) -> ApiError | None:
    """The error of a generation that its grammar ended, by the client's field. None: something else ended it.

    error: the engine's words. Such a grammar was compiled and tried before, and became too complex in the middle of a text."""
    if requested is None or error is None or not error.startswith(GRAMMAR):
        return None
    name = requested.asked_as or f"structured_outputs.{requested.constraint[0]}"
    return ApiError(f"{name}: {error.removeprefix(GRAMMAR)}", name)


FORMS = {
    "prompt": "a string, a list of strings, a list of token ids or a list of lists of token ids (0 or more each)",
    "input": "a string, a list of strings, a list of token ids or a list of lists of token ids (0 or more each)",
    "stop": "a string or a list of strings",
    "decoder_prompt": "a string or a list of token ids",
    "voice": "a name, or an object with the name as id",
    "content": "a string or a list of text parts",
}
"""Forms that a field with several may have."""


def from_validation(error: ValidationError) -> ApiError:
    """The most telling objection, with the field as the client wrote it (messages[0].content). One to the value comes
    before one to its type, because of a field's forms the others always object to the type. Then the deepest."""
    branches = _branch_names()
    first = max(
        error.errors(include_url=False, include_input=False),
        key=lambda e: (_of_value(e["type"]), len(_names(e["loc"], branches))),
    )
    names, kind = _names(first["loc"], branches), first["type"]
    param = _path(names)
    words = [n for n in names if isinstance(n, str)]
    if kind == "missing":
        message = f"{param}: required field is missing"
    elif len(names) < len(first["loc"]) and words[-1] in FORMS and not _of_value(kind):
        param = _path(names[: names.index(words[-1]) + 1])
        message = f"{param}: must be {FORMS[words[-1]]}"
    else:
        text = "must be an object" if kind == "model_type" else first["msg"].removeprefix("Value error, ")
        message = f"{param}: {text[:1].lower()}{text[1:]}" if param else text
    return ApiError(message, param or None)


def _of_value(kind: str) -> bool:
    """Is an objection of this kind to the value, given that its type is right?"""
    return not kind.endswith("_type") and kind != "missing"


def _names(location: tuple[int | str, ...], branches: frozenset[str]) -> list[int | str]:
    """A pydantic location without the names of union branches ("list[constrained-int]", "str", "MediaUrl")."""
    return [p for p in location if not (isinstance(p, str) and (p in branches or "[" in p or "-" in p))]


def _branch_names() -> frozenset[str]:
    """Of types and of this package's models."""
    found, models = {"str", "int", "float", "bool"}, [BaseModel]
    while models:
        below = [model for model in models.pop().__subclasses__() if model.__module__.startswith("thalweg.")]
        found.update(model.__name__ for model in below)
        models += below
    return frozenset(found)


def _path(names: list[int | str]) -> str:
    out = ""
    for part in names:
        out += f"[{part}]" if isinstance(part, int) else f".{part}" if out else part
    return out
