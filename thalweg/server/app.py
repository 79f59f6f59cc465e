"""The HTTP application: routes, and what surrounds them. Everything it needs is handed to `make_app`."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

import thalweg
from thalweg.plugins import imported
from thalweg.server.core.abilities import able, refusing
from thalweg.server.core.lifecycle import PROBES, Gate, Lifecycle
from thalweg.server.core.serving import Serving
from thalweg.server.description import EVENTS, Described, pages_of
from thalweg.server.errors import ApiError
from thalweg.server.http.answer import failure, respond
from thalweg.server.http.middleware import Counted, HostGuard, KeyGuard, RequestIds, RootPath
from thalweg.server.observe.metrics import EngineMetrics, HttpMetrics, exposition
from thalweg.server.openai.chat import chat_completions
from thalweg.server.openai.completions import completions
from thalweg.server.openai.conversation import Conversation
from thalweg.server.openai.protocol import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeChat, TokenizeText
from thalweg.server.openai.tokens import detokenize, tokenize
from thalweg.server.settings import ServerSettings

if TYPE_CHECKING:
    from thalweg.async_llm import AsyncLLM

ANSWERS = ("application/json", EVENTS)
"""Content types of what can be streamed."""
_ANTHROPIC = "thalweg.server.anthropic"
_POOLING = "thalweg.server.pooling"


class Application:
    """The ASGI application. Answers probes from the start, and everything else once it is given an engine."""

    serving: Serving
    """Set by `open`."""

    def __init__(self, settings: ServerSettings, metrics: EngineMetrics | None = None) -> None:
        """metrics: the StatLogger the engine is started with. None leaves the engine's series out of /metrics
        (--disable-log-stats)."""
        self.lifecycle = Lifecycle()
        self._settings, self._engine_metrics = settings, metrics
        self._metrics = metrics or EngineMetrics()
        self._http = HttpMetrics(self._metrics.registry)
        self._gate = Gate(self.lifecycle, settings.root_path.rstrip("/"))
        self._app = _surround(self._gate, settings, self._http)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":  # there is nothing to do
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        await self._app(scope, receive, send)

    def open(self, engine: AsyncLLM) -> None:
        """Serve with a started engine, which stays its owner's."""
        self.serving = Serving(engine, self._settings, self.lifecycle, self._http.unknown_field)
        if self._engine_metrics is not None:
            self._engine_metrics.bind(engine.model_names[0], engine.config)
            self._engine_metrics.queued = lambda: self.serving.admission.waiting
        conversation = Conversation(self.serving)
        described = [
            *_openai_routes(self.serving, conversation), *_anthropic_routes(self.serving, conversation),
            *_pooling_routes(self.serving), *_ops_routes(self.serving, self._metrics, self._http),
        ]  # fmt: skip
        described = [refusing(self.serving, d) for d in described]
        pages = [] if self._settings.disable_fastapi_docs else pages_of(described)
        routes = Starlette(
            routes=[*(d.route() for d in described), *pages, Route("/", _root, methods=["HEAD", "GET"])],
            exception_handlers=dict.fromkeys((Exception, HTTPException, ApiError), _on_error),
        )
        self._http.paths = frozenset(getattr(r, "path", "") for r in routes.routes) | PROBES
        self._gate.app = routes
        self.lifecycle.open(engine)


def make_app(engine: AsyncLLM, settings: ServerSettings, metrics: EngineMetrics | None = None) -> Application:
    """An application that serves at once."""
    app = Application(settings, metrics)
    app.open(engine)
    return app


def _surround(app: ASGIApp, settings: ServerSettings, http: HttpMetrics) -> ASGIApp:
    """Middleware, innermost first."""
    if settings.api_key:
        app = KeyGuard(app, keys=settings.api_key, root_path=settings.root_path.rstrip("/"))
    if settings.allowed_origins:  # outside the guard: a browser's preflight carries no key
        app = CORSMiddleware(
            app,
            allow_origins=settings.allowed_origins,
            allow_methods=settings.allowed_methods,
            allow_headers=settings.allowed_headers,
            allow_credentials=settings.allow_credentials,
        )
    for made in settings.middleware:
        app = made(app) if isinstance(made, type) else BaseHTTPMiddleware(app, dispatch=made)
    if (hosts := settings.hosts) is not None:
        app = HostGuard(app, hosts, settings.root_path.rstrip("/"))
    if settings.root_path:
        app = RootPath(app, root_path=settings.root_path.rstrip("/"))
    if settings.enable_request_id_headers:
        app = RequestIds(app)
    return Counted(app, metrics=http)


async def _on_error(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        words = {404: "there is no such route", 405: "this method is not allowed on this route"}
        fields = {k: v for k, v in (error.headers or {}).items() if k == "Allow"}
        return failure(ApiError(words.get(error.status_code, str(error.detail)), status=error.status_code), fields)
    return failure(error)


async def _root(request: Request) -> Response:
    """Clients ask whether somebody is here."""
    if request.method == "HEAD":
        return Response()
    raise HTTPException(404)


def _openai_routes(serving: Serving, conversation: Conversation) -> list[Described]:
    async def _completions(request: Request) -> Response:
        return await _safely(completions(serving, request))

    async def _chat(request: Request) -> Response:
        return await _safely(chat_completions(serving, conversation, request))

    async def _tokenize(request: Request) -> Response:
        return await _safely(tokenize(serving, conversation, request))

    async def _detokenize(request: Request) -> Response:
        return await _safely(detokenize(serving, request))

    async def _models(request: Request) -> Response:
        return respond({"object": "list", "data": [_card(serving, name) for name in serving.engine.model_names]})

    async def _model(request: Request) -> Response:
        return await _safely(_one_model(serving, request.path_params["name"]))

    return [
        Described("/v1/completions", _completions, (CompletionRequest,), "Continue text", ANSWERS, "generate"),
        Described("/v1/chat/completions", _chat, (ChatRequest,), "Answer a conversation", ANSWERS, "generate"),
        Described("/tokenize", _tokenize, (TokenizeText, TokenizeChat), "Token ids of a text or a conversation"),
        Described("/detokenize", _detokenize, (DetokenizeRequest,), "The text of token ids"),
        Described("/v1/models", _models, says="The models served"),
        Described("/v1/models/{name:path}", _model, says="One model"),
    ]


def _anthropic_routes(serving: Serving, conversation: Conversation) -> list[Described]:
    """Loaded if the model generates, or when somebody asks for the description. Their errors are of their own form."""

    def described(path: str, route: str, body: str, says: str, kinds: tuple[str, ...], needs: str) -> Described:
        where = f"{_ANTHROPIC}.{route}:{route}"

        async def answered(request: Request) -> Response:
            return await _safely(imported(where)(serving, conversation, request))

        if able(serving, "generate"):
            imported(where)
        return Described(path, answered, (f"{_ANTHROPIC}.protocol:{body}",), says, kinds, needs)

    count = "Tokens of a conversation"
    return [
        described("/v1/messages", "messages", "MessagesRequest", "Answer a conversation", ANSWERS, "generate"),
        described("/v1/messages/count_tokens", "count_tokens", "CountRequest", count, ANSWERS[:1], ""),
    ]


def _pooling_routes(serving: Serving) -> list[Described]:
    """Their bodies are a fifth of what the server imports, and most models have none of these routes. So they are named here,
    and loaded if the model has one, or when somebody asks for the description."""

    def described(path: str, route: str, body: str, says: str, needs: str) -> Described:
        where = f"{_POOLING}.{route}:{route}"

        async def answered(request: Request) -> Response:
            return await _safely(imported(where)(serving, request))

        if able(serving, needs):  # now, not when the first request waits for it
            imported(where)
        return Described(path, answered, (f"{_POOLING}.protocol:{body}",), says, needs=needs)

    rank = described("/rerank", "rerank", "RerankRequest", "Documents in order of how well they answer", "score")
    pairs = described("/score", "score", "ScoreRequest", "How well texts go together", "score")
    return [
        described("/v1/embeddings", "embeddings", "EmbeddingRequest", "A vector per input", "embed"),
        described("/pooling", "pooling", "PoolingRequest", "What the model gives of each input", "pool"),
        described("/classify", "classify", "ClassifyRequest", "The classes of each input", "classify"),
        pairs, replace(pairs, path="/v1/score"), rank, replace(rank, path="/v1/rerank"), replace(rank, path="/v2/rerank"),
    ]  # fmt: skip


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


def _ops_routes(serving: Serving, metrics: EngineMetrics, http: HttpMetrics) -> list[Described]:
    async def _version(request: Request) -> Response:
        return respond({"version": thalweg.__version__})

    async def _load(request: Request) -> Response:
        return respond({"server_load": http.load if serving.settings.enable_server_load_tracking else 0})

    async def _metrics(request: Request) -> Response:
        body, kind = exposition(metrics.registry, serving.settings.metrics_prefix)
        return Response(body, media_type=kind)

    return [
        Described("/version", _version, says="The version of this server"),
        Described("/load", _load, says="Requests in flight that go to the engine"),
        Described("/metrics", _metrics, says="Prometheus metrics", kinds=("text/plain",)),
    ]
