"""/generate, as vLLM's first server had it: a prompt with parameters beside it in, whole texts out, each after its prompt."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Annotated, Any

import orjson
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from thalweg.errors import RequestError
from thalweg.outputs import RequestOutput
from thalweg.server.core.schema import Asked, Flag, Text
from thalweg.server.core.serving import Job, Serving
from thalweg.server.errors import ApiError, translate
from thalweg.server.http.answer import STARTED, EventStream, or_disconnect
from thalweg.server.inference.protocol import Json, read


class PromptRequest(Asked):
    """Every other field of the body is one of SamplingParams."""

    prompt: Annotated[Text, Field(min_length=1)]
    stream: Flag | None = False
    sampling_params: Json = {}

    @classmethod
    def refuse(cls, body: dict[str, Any]) -> None:
        """Takes them out of the body. None of them has the name of another field."""
        given = {name: body.pop(name) for name in list(body) if name not in cls.model_fields}
        if "sampling_params" in body:
            raise ApiError("sampling_params: its members stand beside the prompt here", "sampling_params")
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
    (ids,) = await serving.encode([request.prompt], True, serving.kept(request), ticket.tenant)
    prompt = {"prompt": request.prompt, "prompt_token_ids": ids}
    work = Texts(serving, serving.job("gen", http, request, [prompt], params, ticket), request.prompt)
    if request.stream:
        return TextLines(work.stream())
    body = await or_disconnect(http.receive, work.whole())
    return Response(status_code=499) if body is None else Response(body, media_type="application/json")


def _plain(message: str, param: str | None) -> ApiError:
    """Parameters are fields of the body itself."""
    where = "sampling_params."
    return ApiError(message.removeprefix(where), (param or "").removeprefix(where) or None)


class Texts:
    """One request: the texts of its choices, each after the prompt."""

    def __init__(self, serving: Serving, job: Job, prompt: str) -> None:
        self._serving, self._job, self._prompt = serving, job, prompt

    async def whole(self) -> bytes:
        return await self._serving.written(self._job, await self._serving.run(self._job), self._body)

    def _body(self, outputs: list[RequestOutput]) -> dict[str, Any]:
        return {"text": [self._prompt + c.text for o in outputs for c in sorted(o.outputs, key=lambda c: c.index)]}

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """A line for each step, of all that was said so far."""
        said = [self._prompt] * self._job.params.n
        outputs = self._serving.stream(self._job)
        try:
            async for _, output in outputs:
                yield STARTED
                for choice in output.outputs:
                    said[choice.index] += choice.text
                yield orjson.dumps({"text": said}) + b"\n"
        finally:
            await outputs.aclose()


class TextLines(EventStream):
    """A JSON object a line."""

    def __init__(self, frames: AsyncGenerator[bytes, None]) -> None:
        super().__init__(frames, {"Content-Type": "application/x-ndjson"})

    def broken(self, error: BaseException) -> bytes:
        return translate(error).bytes() + b"\n"
