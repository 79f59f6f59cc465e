"""Render and check prompts without running them, for /inference/v1/generate. None needs a place in the queue."""

from __future__ import annotations

import uuid
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from thalweg.params import SamplingParams
from thalweg.server.core.request import ChatRequest
from thalweg.server.core.request import GenerationRequest as Fields
from thalweg.server.core.serving import Serving
from thalweg.server.core.turn import prepare_chat
from thalweg.server.http.answer import respond
from thalweg.server.http.middleware import tenant_of
from thalweg.server.inference.protocol import dump_params
from thalweg.server.openai.completions import prompts
from thalweg.server.openai.protocol import CompletionRequest
from thalweg.server.openai.sampling import completion_params


async def chat(serving: Serving, http: Request) -> Response:
    request = await serving.bodies.parse(http, lambda body: serving.fields.parse(ChatRequest, body))
    serving.model_name(request.model)
    params, prompt, _ = await prepare_chat(serving, request)
    return respond(_render(request, prompt, params, 0))


async def completions(serving: Serving, http: Request) -> Response:
    request = await serving.bodies.parse(http, lambda body: serving.fields.parse(CompletionRequest, body))
    serving.model_name(request.model)
    params = completion_params(request, serving.engine.default_sampling, serving.engine.tokenizer is not None)
    await serving.engine.prepare(params)
    found = await prompts(serving, request, tenant_of(http.scope))
    return respond([_render(request, prompt, params, i) for i, prompt in enumerate(found)])


def _render(request: Fields, prompt: dict[str, Any], params: SamplingParams, i: int) -> dict[str, Any]:
    id = request.request_id or uuid.uuid4().hex
    return {
        "request_id": f"{id}-{i}" if i else id,
        "token_ids": prompt["prompt_token_ids"],
        "features": None,
        "sampling_params": dump_params(params),
        "model": request.model,
        "stream": bool(request.stream),
        "stream_options": request.stream_options.model_dump() if request.stream_options else None,
        "cache_salt": request.cache_salt,
        "priority": request.priority,
        "kv_transfer_params": request.kv_transfer_params,
    }
