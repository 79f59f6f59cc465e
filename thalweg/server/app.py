"""The HTTP application: routes, and what surrounds them. Everything it needs is handed to `make_app`."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response

import thalweg
from thalweg.errors import EngineDeadError
from thalweg.server.errors import ApiError
from thalweg.server.http import failure, respond
from thalweg.server.metrics import EngineMetrics, HttpMetrics, exposition
from thalweg.server.middleware import Counted, KeyGuard, RequestIds, RootPath
from thalweg.server.openai.chat import chat_completions
from thalweg.server.openai.completions import completions
from thalweg.server.openai.conversation import Conversation
from thalweg.server.openai.protocol import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeText
from thalweg.server.openai.serving import Serving
from thalweg.server.openai.tokens import detokenize, tokenize
from thalweg.server.settings import ServerSettings

if TYPE_CHECKING:
    from thalweg.async_llm import AsyncLLM


def make_app(engine: AsyncLLM, settings: ServerSettings, metrics: EngineMetrics | None = None) -> FastAPI:
    """The application over a started engine, which it does not own; its `state.serving` can end requests.

    metrics: the StatLogger the engine was started with; None leaves the engine's series out of /metrics
    (--disable-log-stats)."""
    docs = not settings.disable_fastapi_docs
    app = FastAPI(
        title="thalweg",
        version=thalweg.__version__,
        openapi_url="/openapi.json" if docs else None,
        docs_url="/docs" if docs else None,
        redoc_url="/redoc" if docs else None,
    )
    serving = app.state.serving = Serving(engine, settings)
    registry_owner = metrics or EngineMetrics()
    if metrics is not None:
        metrics.bind(engine.model_names[0], engine.config)
    http = HttpMetrics(registry_owner.registry)
    _openai_routes(app, serving)
    _ops_routes(app, serving, registry_owner, http)
    http.paths = frozenset(getattr(r, "path", "") for r in app.routes)
    for kind in (Exception, HTTPException):
        app.add_exception_handler(kind, _on_error)
    app.add_exception_handler(ApiError, _on_error)
    _surround(app, settings, http)
    return app


def _surround(app: FastAPI, settings: ServerSettings, http: HttpMetrics) -> None:
    """Middleware, innermost first."""
    if settings.api_key:
        app.add_middleware(KeyGuard, keys=settings.api_key, root_path=settings.root_path.rstrip("/"))
    # Outside the guard: a browser's preflight carries no key.
    app.add_middleware(
        CORSMiddleware,
        allow_origins=settings.allowed_origins,
        allow_methods=settings.allowed_methods,
        allow_headers=settings.allowed_headers,
        allow_credentials=settings.allow_credentials,
    )
    if settings.root_path:
        app.add_middleware(RootPath, root_path=settings.root_path.rstrip("/"))
    if settings.enable_request_id_headers:
        app.add_middleware(RequestIds)
    app.add_middleware(Counted, metrics=http)


async def _on_error(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        words = {404: f"no route {request.url.path}", 405: f"{request.method} is not allowed on {request.url.path}"}
        error = ApiError(words.get(error.status_code, str(error.detail)), status=error.status_code)
    return failure(error)


def _schema(*models: Any) -> dict[str, Any]:
    """The request body for /openapi.json; bodies are read by hand, within bounds."""
    forms = [m.model_json_schema(ref_template="#/components/schemas/{model}") for m in models]
    for form in forms:
        form.pop("$defs", None)
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": forms[0]}}}}


def _openai_routes(app: FastAPI, serving: Serving) -> None:
    conversation = Conversation(serving)

    @app.post("/v1/completions", openapi_extra=_schema(CompletionRequest))
    async def _completions(request: Request) -> Response:
        return await _safely(completions(serving, request))

    @app.post("/v1/chat/completions", openapi_extra=_schema(ChatRequest))
    async def _chat(request: Request) -> Response:
        return await _safely(chat_completions(serving, conversation, request))

    @app.post("/tokenize", openapi_extra=_schema(TokenizeText))
    async def _tokenize(request: Request) -> Response:
        return await _safely(tokenize(serving, conversation, request))

    @app.post("/detokenize", openapi_extra=_schema(DetokenizeRequest))
    async def _detokenize(request: Request) -> Response:
        return await _safely(detokenize(serving, request))

    @app.get("/v1/models")
    async def _models() -> Response:
        return respond({"object": "list", "data": [_card(serving, name) for name in serving.engine.model_names]})

    @app.get("/v1/models/{name:path}")
    async def _model(name: str) -> Response:
        return await _safely(_one_model(serving, name))


async def _one_model(serving: Serving, name: str) -> Response:
    return respond(_card(serving, serving.model_name(name)))


def _card(serving: Serving, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": serving.created,
        "owned_by": "thalweg",
        "root": serving.engine.model_names[0],
        "parent": None,
        "max_model_len": serving.engine.config.model.max_len,
    }


async def _safely(work: Awaitable[Response]) -> Response:
    """Errors become answers here, so that the framework never prints one."""
    try:
        return await work
    except Exception as e:
        return failure(e)


def _ops_routes(app: FastAPI, serving: Serving, metrics: EngineMetrics, http: HttpMetrics) -> None:
    async def health() -> Response:
        try:
            await serving.engine.check_health()
        except EngineDeadError:
            return Response(status_code=503)
        return Response()

    app.add_api_route("/health", health, methods=["GET"])
    app.add_api_route("/ping", health, methods=["GET", "POST"], include_in_schema=False)

    @app.get("/version")
    async def _version() -> Response:
        return respond({"version": thalweg.__version__})

    @app.get("/load")
    async def _load() -> Response:
        return respond({"server_load": http.load if serving.settings.enable_server_load_tracking else 0})

    @app.get("/metrics")
    async def _metrics() -> Response:
        body, kind = exposition(metrics.registry)
        return Response(body, media_type=kind)
