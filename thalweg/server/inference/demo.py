"""/generate, as vLLM's first server had it: a prompt and parameters at the top level in, whole texts out, each after its
prompt."""

from __future__ import annotations

from typing import Annotated, Any

import orjson
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from thalweg.errors import RequestError
from thalweg.outputs import RequestOutput
from thalweg.server.core.job import GenerationJob
from thalweg.server.core.schema import Flag, RequestFields, Text
from thalweg.server.core.serving import Serving
from thalweg.server.core.turn import TurnReply
from thalweg.server.errors import ApiError, ErrorForm
from thalweg.server.inference.protocol import Json, read


class PromptRequest(RequestFields):
    """Every other field of the body is one of SamplingParams."""

    prompt: Annotated[Text, Field(min_length=1)]
    stream: Flag | None = False
    sampling_params: Json = {}

    @classmethod
    def refuse(cls, body: dict[str, Any]) -> None:
        """Move sampling parameters out of the body. Their names differ from those of all fields."""
        given = {name: body.pop(name) for name in list(body) if name not in cls.model_fields}
        if "sampling_params" in body:
            raise ApiError("sampling_params: give its members at the top level, next to the prompt", "sampling_params")
        body["sampling_params"] = given


async def generate(serving: Serving, http: Request) -> Response:
    request, ticket = await serving.read(http, lambda body: serving.fields.parse(PromptRequest, body))
    try:
        params = read(request.sampling_params, bool(request.stream))
        params.detokenize = True
        await serving.engine.prepare(params)
    except RequestError as e:
        raise _plain(str(e), e.param) from None
    except ApiError as e:
        raise _plain(str(e), e.param) from None
    (ids,) = await serving.encode([request.prompt], True, serving.truncation_limit(request), ticket.tenant)
    prompt = {"prompt": request.prompt, "prompt_token_ids": ids}
    reply = TextsReply(serving, serving.job("gen", http, request, [prompt], params, ticket), request.prompt)
    return await reply.respond(http, bool(request.stream))


def _plain(message: str, param: str | None) -> ApiError:
    """Parameters are fields of the body itself."""
    where = "sampling_params."
    return ApiError(message.removeprefix(where), (param or "").removeprefix(where) or None)


class TextsReply(TurnReply):
    """The texts of the choices, each after the prompt. Of a stream a line for each step, with all that was said so far."""

    errors = ErrorForm(ApiError.body, lambda error: error.bytes() + b"\n")
    stream_type = "application/x-ndjson"

    def __init__(self, serving: Serving, job: GenerationJob, prompt: str) -> None:
        super().__init__(serving, job)
        self._prompt = prompt
        self._said = [prompt] * job.params.n

    def write_body(self, outputs: list[RequestOutput]) -> dict[str, Any]:
        return {"text": [self._prompt + c.text for o in outputs for c in sorted(o.outputs, key=lambda c: c.index)]}

    def write(self, i: int, output: RequestOutput) -> list[bytes]:
        for choice in output.outputs:
            self._said[choice.index] += choice.text
        return [orjson.dumps({"text": self._said}) + b"\n"]
