"""/inference/v1/generate: token ids in, token ids out."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from thalweg.errors import RequestError
from thalweg.outputs import CompletionOutput, RequestOutput
from thalweg.server.core.job import GenerationJob
from thalweg.server.core.serving import Serving
from thalweg.server.core.turn import TurnReply
from thalweg.server.errors import ApiError
from thalweg.server.http.answer import DONE
from thalweg.server.inference.protocol import GenerateRequest, read
from thalweg.server.openai import logprobs

OWN_FIELDS = ("kv_transfer_params", "cache_hit_threshold")
"""Parameters that are fields of the body."""


async def generate(serving: Serving, http: Request) -> Response:
    request, ticket = await serving.read(http, lambda body: serving.fields.parse(GenerateRequest, body))
    serving.model_name(request.model)
    params = read(
        request.sampling_params, bool(request.stream), kv_transfer_params=request.kv_transfer_params,
        cache_hit_threshold=request.cache_hit_threshold,
    )  # fmt: skip
    try:
        await serving.engine.prepare(params)
    except RequestError as e:
        raise rename_param(e) from None
    id = request.request_id or http.headers.get("x-request-id", "")[:256] or uuid.uuid4().hex
    job = serving.job("gen", http, request, [{"prompt_token_ids": request.token_ids}], params, ticket, id)
    return await TokensReply(serving, job, request).respond(http, bool(request.stream))


def rename_param(error: RequestError) -> ApiError:
    if error.param in OWN_FIELDS:
        return ApiError(str(error), error.param)
    param = "token_ids" if error.param in ("prompt", "prompt_token_ids", None) else f"sampling_params.{error.param}"
    return ApiError(str(error), param)


class TokensReply(TurnReply):
    def __init__(self, serving: Serving, job: GenerationJob, request: GenerateRequest) -> None:
        super().__init__(serving, job)
        options = request.stream_options
        self._usage = bool(options and options.include_usage)
        self._every = bool(self._usage and options and options.continuous_usage_stats)

    def rename(self, error: Exception) -> Exception:
        return rename_param(error) if isinstance(error, RequestError) else error

    def write_body(self, outputs: list[RequestOutput]) -> dict[str, Any]:
        (output,) = outputs
        return {
            "request_id": self.job.id,
            "choices": [self._choice(c) for c in sorted(output.outputs, key=lambda c: c.index)],
            "prompt_logprobs": logprobs.prompt(output.prompt_logprobs) if self.job.params.prompt_logprobs is not None else None,
            "usage": self.serving.total_usage(self.job, outputs),
            "kv_transfer_params": output.kv_transfer_params,
        }

    def write(self, i: int, output: RequestOutput) -> Iterator[bytes]:
        result = self.made - sum(len(c.token_ids) for c in output.outputs)
        for choice in output.outputs:
            result += len(choice.token_ids)
            yield self._frame([self._choice(choice)], self._usage_at(result) if self._every else None)

    def end(self) -> list[bytes]:
        return [*([self._frame([], self._usage_at(self.made))] if self._usage else []), DONE]

    def _usage_at(self, result: int) -> dict[str, Any]:
        """result: output tokens up to there."""
        return self.usage(result)

    def _frame(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None) -> bytes:
        body = {"request_id": self.job.id, "choices": choices, "usage": usage}
        return b"data: " + orjson.dumps(body, option=orjson.OPT_NON_STR_KEYS) + b"\n\n"

    def _choice(self, choice: CompletionOutput) -> dict[str, Any]:
        requested, names = self.job.params.logprobs, self.serving.engine.tokenizer
        as_ids = names is None or self.serving.settings.return_tokens_as_token_ids
        scores = logprobs.chat(choice.logprobs or (), requested or 0, as_ids, names.bytes_of if names else None)
        return {
            "index": choice.index,
            "logprobs": None if requested is None else scores,
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
            "token_ids": list(choice.token_ids),
        }
