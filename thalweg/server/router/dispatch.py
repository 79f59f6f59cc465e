"""Requests to a server with several models: each goes to the model it names, which is loaded first if necessary.

The routes are those of `server.routes`. A request that names no model is for the first of the list.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial

from prometheus_client import CollectorRegistry
from starlette.requests import Request
from starlette.responses import Response

from thalweg.errors import ThalwegError
from thalweg.host import envs
from thalweg.plugins import import_attribute
from thalweg.server.core.context import ServerContext
from thalweg.server.core.lifecycle import Lifecycle
from thalweg.server.core.lines import LineRunner
from thalweg.server.description import RouteDescription
from thalweg.server.errors import ApiError, translate
from thalweg.server.http.answer import SILENCE, or_disconnect
from thalweg.server.http.middleware import current_scope
from thalweg.server.observe.metrics import HttpMetrics, MergedCollector
from thalweg.server.observe.traces import Traces
from thalweg.server.router import operators
from thalweg.server.router.late_answer import LateAnswer
from thalweg.server.router.models import ModelList, ServedModel, StartEngine, start_engine
from thalweg.server.router.request_model import read_form_model, read_head, replay, take_query_model
from thalweg.server.router.residency import Residency
from thalweg.server.router.standby import StandbyReserve
from thalweg.server.routes import ROOM, ROUTES, Row, describe_row, error_response
from thalweg.server.settings import ServerSettings

log = logging.getLogger(__name__)
OVERHEAD = 64 * 1024
"""Bytes of a form besides its file."""
WAITING_PER_SEQUENCE = 4
"""Requests that may wait for a model that is not loaded, for each sequence that it runs at once. --max-queued-requests, where
given, is the bound."""
Handler = Callable[[Request], Awaitable[Response]]


class ModelRouter:
    """The models of one server. `start` loads the pinned ones, `close` ends all."""

    def __init__(
        self, listed: ModelList, settings: ServerSettings, lifecycle: Lifecycle, traffic: HttpMetrics, reserve: StandbyReserve,
        traces: Traces | None = None, start: StartEngine = start_engine,
    ) -> None:  # fmt: skip
        self.settings, self._reserve = settings, reserve
        entries = listed.entries
        self.context = ServerContext(
            settings, lifecycle, traffic, max(e.max_model_len for e in entries), max(e.max_num_seqs for e in entries)
        )
        registries: dict[str, CollectorRegistry] = {}
        traffic.registry.register(MergedCollector(registries))
        self.models = [
            ServedModel(e, self.context, reserve, registries, traces, start, partial(self._belongs_to_other, i))
            for i, e in enumerate(entries)
        ]
        self._by_name = {name: model for model in self.models for name in model.entry.names}
        self.residency = Residency(self.models, listed.budgets, listed.max_loaded)

    # ------------------------------------------------------------------ the server's

    ready = True
    state = "ready"

    async def check_health(self) -> None:
        """No error: a model whose engine ended for good starts anew with its next request."""

    async def start(self) -> None:
        """Load the pinned models. Raises the error of the first that cannot be loaded."""
        for model in self.models:
            if model.pinned:
                await self.residency.wake_up(model)

    async def cut(self) -> None:
        """The time to drain is over: whoever waits or runs gets an error with code 503."""
        self.context.lifecycle.cutting = True
        await self.residency.close()
        for model in self.models:
            if model.serving is not None:
                await model.serving.cut()

    async def shutdown(self) -> None:
        """End every engine."""
        await self.residency.close()
        self._reserve.close()
        await asyncio.gather(*(model.close() for model in self.models))

    def names(self) -> list[str]:
        return [name for model in self.models for name in (*model.entry.names, *model.adapter_names)]

    def _belongs_to_other(self, index: int, name: str) -> bool:
        """Does a model, or its adapter, have this name, other than the model with this index?"""
        return any(name in (*m.entry.names, *m.adapter_names) for i, m in enumerate(self.models) if i != index)

    def find(self, name: str | None) -> ServedModel:
        """The model of this name, or with an adapter of this name. None: the first model. ApiError 404 for an unknown name."""
        if not name:
            return self.models[0]
        model = self._by_name.get(name) or next((m for m in self.models if name in m.adapter_names), None)
        if model is None:
            raise ApiError(f"model {name!r} does not exist here; this server has {', '.join(self.names())}", "model", 404)
        return model

    # ------------------------------------------------------------------ routes

    def describe_routes(self) -> list[RouteDescription]:
        """Every route that a model may have."""
        given = [row for row in ROUTES if self._is_given(row)]
        listed = [d for row in given for d in describe_row(row, partial(self._handler, row))]
        paths = {d.path: d.endpoint for d in listed if d.bodies and d.needs}
        self.context.lines = LineRunner(paths, self.context.bodies)
        return listed

    def _is_given(self, row: Row) -> bool:
        every = [self.settings, *(m.entry.settings for m in self.models)]
        return not row.given or not hasattr(self.settings, row.given) or any(getattr(s, row.given) for s in every)

    def _handler(self, row: Row, path: str) -> Handler:
        """The function of a route."""
        own = operators.ROUTES.get(row.path)
        work: Handler
        if own is not None:
            work = partial(own, self)
        elif row.shared:
            work = partial(self._ask_shared, row)
        elif row.bodies or row.path == operators.INVOCATIONS:
            work = partial(self._ask_by_body, row, path)
        elif row.form:
            work = partial(self._ask_by_form, row, path)
        else:
            work = partial(self._ask_by_query, row, path)

        async def handle(http: Request) -> Response:
            current_scope.set(http.scope)
            try:
                return await work(http)
            except Exception as e:
                return error_response(row, e)

        return handle

    async def _ask_shared(self, row: Row, http: Request) -> Response:
        answer: Response = await import_attribute(ROOM + row.where)(self.context, http)
        return answer

    async def _ask_by_body(self, row: Row, path: str, http: Request) -> Response:
        bodies = self.context.bodies
        data = await bodies.raw(http, bodies.limit)
        name, streams = await bodies.read(len(data), partial(read_head, data, bodies.values))
        if name is None and "model" in http.query_params:  # routes whose body has no such field
            name, http = take_query_model(http)
        model = self.find(name)
        silence = http.scope.get(SILENCE)
        work = self._load_and_ask(model, row, path, http, data)
        if streams and silence and not self.residency.is_open(model):
            return LateAnswer(work, silence, row)
        return await work

    async def _ask_by_form(self, row: Row, path: str, http: Request) -> Response:
        limit = envs.upload_bytes() + OVERHEAD
        data = await self.context.bodies.raw(http, limit)
        kind = http.headers.get("content-type", "")
        name = await asyncio.to_thread(read_form_model, data, kind)
        return await self._load_and_ask(self.find(name), row, path, http, data)

    async def _ask_by_query(self, row: Row, path: str, http: Request) -> Response:
        name, http = take_query_model(http)
        return await self._load_and_ask(self.find(name), row, path, http)

    async def _load_and_ask(
        self, model: ServedModel, row: Row, path: str, http: Request, data: bytearray | None = None
    ) -> Response:
        """The model's answer. data: the body, where it was read already. It is held while the model is loaded."""
        with self._hold(0 if data is None else len(data)):
            await self.enter(model, http)
        endpoint = model.endpoints.get((path, row.http_method))
        if endpoint is None:
            raise ApiError(f"{path}: model {model.name!r} does not have this route", status=404)
        return await endpoint(http if data is None else replay(http, data))

    async def enter(self, model: ServedModel, http: Request) -> None:
        """Wait until the model serves. It stays loaded until the request has ended. ApiError 429 if too many wait already, 499
        if the client leaves, 503 if the model cannot be loaded."""
        if not self.residency.try_enter(model):
            limit = model.entry.settings.max_queued_requests
            limit = WAITING_PER_SEQUENCE * model.entry.max_num_seqs if limit is None else limit
            if len(model.waiters) >= limit:
                words = f"model {model.name!r} is {model.status}, and {limit} requests wait for it; try again later"
                raise ApiError(words, status=429, retry_after=1)
            try:
                if await or_disconnect(http.receive, self._wait(model)) is None:
                    raise ApiError("the client left", status=499)
            except ThalwegError as e:
                raise explain_failure(model, e) from None
        http.scope["thalweg.visit"].at_end(partial(self.residency.leave, model))

    async def _wait(self, model: ServedModel) -> bool:
        await self.residency.enter(model)
        return True

    @contextmanager
    def _hold(self, size: int) -> Iterator[None]:
        """Count the bytes of a body among those that are held."""
        self.context.bodies.held += size
        try:
            yield
        finally:
            self.context.bodies.held -= size


def explain_failure(model: ServedModel, error: ThalwegError) -> ApiError:
    """The answer to a request whose model could not be loaded."""
    known = translate(error)
    if known.status == 503:
        return known
    return ApiError(f"model {model.name!r} cannot be loaded now; the server's log says why", "model", 503, retry_after=5)
