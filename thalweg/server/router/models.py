"""One model of a server with several: its settings, its engine, and its routes while it is loaded."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from starlette.requests import Request
from starlette.responses import Response

from thalweg.async_llm import AsyncLLM, StatLogger
from thalweg.config import EngineArgs
from thalweg.engine.client.standby import Standby
from thalweg.host import envs
from thalweg.lora import read_modules
from thalweg.server.core.adapters import load_modules
from thalweg.server.core.context import ServerContext
from thalweg.server.core.serving import Serving, bind_metrics
from thalweg.server.observe.metrics import EngineMetrics
from thalweg.server.observe.recent import RecentRequests
from thalweg.server.observe.stats_line import StatsLine
from thalweg.server.observe.traces import Traces
from thalweg.server.router.residency import Resident
from thalweg.server.router.standby import StandbyReserve
from thalweg.server.routes import prepare_routes
from thalweg.server.settings import ServerSettings

log = logging.getLogger(__name__)
Endpoint = Callable[[Request], Awaitable[Response]]
StartEngine = Callable[[EngineArgs, Sequence[StatLogger], Standby | None], Awaitable[AsyncLLM]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEntry:
    """A model as the operator described it, with the facts of its memory plan."""

    args: EngineArgs
    settings: ServerSettings
    names: tuple[str, ...]
    """Names that requests may give. The first is shown."""
    cost: Mapping[str, int]
    """Bytes in memory, by platform."""
    max_model_len: int
    max_num_seqs: int
    pinned: bool = False
    idle_seconds: float = 0.0

    @property
    def module_names(self) -> list[str]:
        """Names of the adapters of `lora_modules`. ConfigError for an invalid one."""
        return [module.lora_name for module in read_modules(self.settings.lora_modules or [])]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelList:
    """The models of one server. The first answers requests that name none."""

    entries: tuple[ModelEntry, ...]
    budgets: Mapping[str, int]
    """Bytes of each platform."""
    max_loaded: int | None = None


async def start_engine(args: EngineArgs, loggers: Sequence[StatLogger], standby: Standby | None) -> AsyncLLM:
    """A ready engine. Errors of `AsyncLLM.start` pass through."""
    return await AsyncLLM.start(args, loggers=loggers, standby=standby)


class ServedModel(Resident):
    """A model and its engine. The engine's process ends when the model is unloaded. The tokenizer, the template and stored
    state stay, so a later load only starts the process."""

    def __init__(
        self, entry: ModelEntry, context: ServerContext, reserve: StandbyReserve, metrics: dict[str, CollectorRegistry],
        traces: Traces | None = None, start: StartEngine = start_engine, is_taken: Callable[[str], bool] = lambda name: False,
    ) -> None:  # fmt: skip
        """metrics: the registry of each model's series, by name. is_taken: does another model, or an adapter of it, have this
        name?"""
        super().__init__(entry.names[0], entry.cost, pinned=entry.pinned, idle_seconds=entry.idle_seconds)
        self.entry, self._context, self._reserve, self._metrics, self._traces = entry, context, reserve, metrics, traces
        self._start_engine = start
        self.engine: AsyncLLM | None = None
        self.serving: Serving | None = None
        """None before the first load."""
        self.endpoints: dict[tuple[str, str], Endpoint] = {}
        """By path and method."""
        self._modules, self._is_taken = entry.module_names, is_taken

    @property
    def is_lost(self) -> bool:
        return self.engine is not None and self.engine.errored

    @property
    def adapter_names(self) -> list[str]:
        """Adapters that requests may name as their model."""
        return self._modules if self.serving is None else self.serving.adapters.names()

    async def load(self) -> None:
        if self.is_lost:
            await self.close()
        standby = self._reserve.take()
        try:
            if self.engine is None:
                await self._open(standby)
                return
            if standby is not None:
                self.engine.adopt_standby(standby)
            await self.engine.wake_up()
        finally:
            self._reserve.refill()

    async def _open(self, standby: Standby | None) -> None:
        """The first load."""
        settings, context, recent = self.entry.settings, self._context, RecentRequests()
        loggers: list[StatLogger] = [recent]
        metrics = None
        if not self.entry.args.disable_log_stats:
            metrics = EngineMetrics(settings.custom_histogram_buckets)
            loggers += [metrics, StatsLine(envs.log_stats_seconds(), name=self.name)]
        traces = None if self._traces is None else self._traces.of_model(self.name)
        if traces is not None:
            loggers.append(traces)
        engine = await self._start_engine(self.entry.args, loggers, standby)
        try:
            adapters = await load_modules(engine, settings)
        except BaseException:
            await engine.shutdown()
            raise
        serving = Serving(engine, settings, context.lifecycle, context.traffic, recent, adapters, context.stores)
        serving.adapters.is_taken = self._is_taken
        recent.progress = engine.progress
        if traces is not None:
            serving.watchers.append(traces)
        if metrics is not None:
            bind_metrics(metrics, serving)
            self._metrics[self.name] = metrics.registry
        self.endpoints = {(d.path, d.method): d.endpoint for d in prepare_routes(serving)}
        self.engine, self.serving = engine, serving

    async def unload(self) -> None:
        assert self.engine is not None, "only loaded models are unloaded"
        if self.engine.errored:
            await self.close()
        else:
            await self.engine.sleep(level=2, mode="wait")

    async def close(self) -> None:
        """End the engine. The model starts anew when it is loaded again."""
        engine, self.engine, self.serving, self.endpoints = self.engine, None, None, {}
        if engine is not None:
            await engine.shutdown()
