"""The HTTP application: everything around the routes. All its inputs are arguments of `make_app`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from thalweg.lora import LoRARequest
from thalweg.server.core.lifecycle import Gate, Lifecycle
from thalweg.server.core.serving import Serving, bind_metrics
from thalweg.server.description import RouteDescription, pages_of
from thalweg.server.errors import ApiError
from thalweg.server.http.answer import SILENCE, failure
from thalweg.server.http.middleware import HostGuard, KeyGuard, MetricsPort, OriginGuard, RequestCounter, RequestIds, RootPath
from thalweg.server.http.probes import PROBES, is_exposition
from thalweg.server.observe.metrics import EngineMetrics, HttpMetrics
from thalweg.server.observe.recent import RecentRequests
from thalweg.server.observe.traces import TraceHeaders, Traces
from thalweg.server.page import assets
from thalweg.server.routes import prepare_routes
from thalweg.server.settings import ServerSettings

if TYPE_CHECKING:
    from thalweg.async_llm import AsyncLLM
    from thalweg.server.router.dispatch import ModelRouter


class Application:
    """The ASGI application. Answers probes from the start, and everything else once it is given an engine."""

    serving: Serving
    """Set by `open`."""

    def __init__(self, settings: ServerSettings, metrics: EngineMetrics | None = None, traces: Traces | None = None) -> None:
        """metrics: the StatLogger the engine is started with. None leaves the engine's series out of /metrics
        (--disable-log-stats). traces: another, if there are to be any."""
        self.lifecycle = Lifecycle()
        self._router: ModelRouter | None = None
        self.recent = RecentRequests()
        """A StatLogger the engine is started with."""
        self._settings, self._engine_metrics, self._traces = settings, metrics, traces
        self._metrics = metrics or EngineMetrics(settings.custom_histogram_buckets)
        self.traffic = HttpMetrics(self._metrics.registry)
        """Requests of the server itself."""
        self._gate = Gate(self.lifecycle, settings.root_path.rstrip("/"))
        if settings.webui:
            page = Starlette(routes=assets.routes())
            self._gate.early = lambda scope: page if assets.is_asset(scope, self._gate.root_path) else None
        self._app = _surround(self._gate, settings, self.traffic, traced=traces is not None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":  # there is nothing to do
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        if self._settings.sse_keep_alive_interval:
            scope[SILENCE] = self._settings.sse_keep_alive_interval
        await self._app(scope, receive, send)

    def open(self, engine: AsyncLLM, adapters: Sequence[LoRARequest] = ()) -> None:
        """Serve with a started engine, which stays its owner's. adapters: those that it has loaded, to be served by name."""
        self.serving = Serving(engine, self._settings, self.lifecycle, self.traffic, self.recent, adapters)
        self.recent.progress = engine.progress
        if self._traces is not None:
            self._traces.model = engine.model_names[0]
            self.serving.watchers.append(self._traces)
        if self._engine_metrics is not None:
            bind_metrics(self._engine_metrics, self.serving)
        self._install(prepare_routes(self.serving))
        self.lifecycle.open(engine)

    async def cut(self) -> None:
        """The time to drain is over: whoever waits or runs gets an error with code 503."""
        await (self.serving if self._router is None else self._router).cut()

    def open_models(self, router: ModelRouter) -> None:
        """Serve the models of a router, which stays its owner's."""
        self._router = router
        self._install(router.describe_routes())
        self.lifecycle.open(router)

    def _install(self, listed: list[RouteDescription]) -> None:
        """Answer these routes from now on."""
        pages = [] if self._settings.disable_fastapi_docs else pages_of(listed)
        root = assets.routes() if self._settings.webui else [Route(assets.ROOT, assets.root)]
        routes = Starlette(
            routes=[*(d.route() for d in listed), *pages, *root],
            exception_handlers=dict.fromkeys((Exception, HTTPException, ApiError), _on_error),
        )
        self.traffic.paths = frozenset(getattr(r, "path", "") for r in routes.routes) | PROBES
        self.traffic.working = frozenset(d.path for d in listed if d.needs)
        self._gate.app = routes


def make_app(
    engine: AsyncLLM, settings: ServerSettings, metrics: EngineMetrics | None = None, traces: Traces | None = None
) -> Application:
    """An application that serves at once."""
    app = Application(settings, metrics, traces)
    app.open(engine)
    return app


def _surround(app: ASGIApp, settings: ServerSettings, http: HttpMetrics, traced: bool) -> ASGIApp:
    """Middleware, innermost first."""
    if traced:
        app = TraceHeaders(app)
    unguarded = app
    if not settings.api_key:  # a key goes with a header, before which a browser asks
        app = OriginGuard(app, settings.allowed_origins)
    else:
        wanted = ((assets.is_asset, settings.webui), (is_exposition, settings.public_metrics))
        public = [is_public for is_public, on in wanted if on]
        app = KeyGuard(app, keys=settings.api_key, root_path=settings.root_path.rstrip("/"), public=public)
    if settings.metrics_port is not None:
        app = MetricsPort(app, unguarded, settings.metrics_port, settings.root_path.rstrip("/"))
    if settings.allowed_origins:  # outside the guard: a browser's preflight carries no key
        app = CORSMiddleware(
            app,
            allow_origins=settings.allowed_origins,
            allow_methods=settings.allowed_methods,
            allow_headers=settings.allowed_headers,
            allow_credentials=settings.allow_credentials,
        )
    for result in settings.middleware:
        app = result(app) if isinstance(result, type) else BaseHTTPMiddleware(app, dispatch=result)
    if (hosts := settings.hosts) is not None:
        app = HostGuard(app, hosts, settings.root_path.rstrip("/"))
    if settings.root_path:
        app = RootPath(app, root_path=settings.root_path.rstrip("/"))
    if settings.enable_request_id_headers:
        app = RequestIds(app)
    return RequestCounter(app, http.in_flight, http.observe)


async def _on_error(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        words = {404: "there is no such route", 405: "this method is not allowed on this route"}
        fields = {k: v for k, v in (error.headers or {}).items() if k == "Allow"}
        return failure(ApiError(words.get(error.status_code, str(error.detail)), status=error.status_code), fields)
    return failure(error)
