"""/inference/v1/generate: token ids in, token ids out."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from thalweg.errors import RequestError
from thalweg.outputs import CompletionOutput, RequestOutput
from thalweg.server.core.serving import Job, Serving
from thalweg.server.errors import ApiError
from thalweg.server.http.answer import DONE, STARTED, EventStream, or_disconnect
from thalweg.server.inference.protocol import GenerateRequest, read
from thalweg.server.openai import logprobs
from thalweg.server.openai.chunks import Counter


async def generate(serving: Serving, http: Request) -> Response:
    request, ticket = await serving.read(http, lambda body: serving.fields.parse(GenerateRequest, body))
    serving.model_name(request.model)
    params = read(request.sampling_params, bool(request.stream))
    try:
        await serving.engine.prepare(params)
    except RequestError as e:
        raise renamed(e) from None
    id = request.request_id or http.headers.get("x-request-id", "")[:256] or uuid.uuid4().hex
    job = serving.job("gen", http, request, [{"prompt_token_ids": request.token_ids}], params, ticket, id)
    work = Generation(serving, request, job)
    if request.stream:
        return EventStream(work.stream())
    body = await or_disconnect(http.receive, work.whole())
    return Response(status_code=499) if body is None else Response(body, media_type="application/json")


def renamed(error: RequestError) -> ApiError:
    param = "token_ids" if error.param in ("prompt", None) else f"sampling_params.{error.param}"
    return ApiError(str(error), param)


class Generation:
    """One request: its tokens as one body or as a stream."""

    def __init__(self, serving: Serving, request: GenerateRequest, job: Job) -> None:
        self.serving, self.request, self.job = serving, request, job

    async def whole(self) -> bytes:
        try:
            return await self.serving.written(self.job, await self.serving.run(self.job), self._body)
        except RequestError as e:
            raise renamed(e) from None

    def _body(self, outputs: list[RequestOutput]) -> dict[str, Any]:
        (output,) = outputs
        return {
            "request_id": self.job.id,
            "choices": [self._choice(c) for c in sorted(output.outputs, key=lambda c: c.index)],
            "prompt_logprobs": logprobs.prompt(output.prompt_logprobs) if self.job.params.prompt_logprobs is not None else None,
            "usage": self.serving.total_usage(self.job, outputs),
            "kv_transfer_params": None,
        }

    async def stream(self) -> AsyncGenerator[bytes, None]:
        options, counter = self.request.stream_options, Counter(self.job, self.serving)
        usage, every = bool(options and options.include_usage), bool(options and options.continuous_usage_stats)
        outputs = self.serving.stream(self.job)
        try:
            async for _, output in outputs:
                yield STARTED
                counter.cached(0, output.num_cached_tokens)
                for choice in output.outputs:
                    counter.made += len(choice.token_ids)
                    yield self._frame([self._choice(choice)], counter.usage() if usage and every else None)
        except RequestError as e:
            raise renamed(e) from None
        finally:
            await outputs.aclose()
        if usage:
            yield self._frame([], counter.usage())
        yield DONE

    def _frame(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None) -> bytes:
        body = {"request_id": self.job.id, "choices": choices, "usage": usage}
        return b"data: " + orjson.dumps(body, option=orjson.OPT_NON_STR_KEYS) + b"\n\n"

    def _choice(self, choice: CompletionOutput) -> dict[str, Any]:
        asked, names = self.job.params.logprobs, self.serving.engine.tokenizer
        as_ids = names is None or self.serving.settings.return_tokens_as_token_ids
        scores = logprobs.chat(choice.logprobs or (), asked or 0, as_ids, names.bytes_of if names else None)
        return {
            "index": choice.index,
            "logprobs": None if asked is None else scores,
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
            "token_ids": list(choice.token_ids),
        }
