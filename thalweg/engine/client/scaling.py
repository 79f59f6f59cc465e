"""Changing the number of engines while requests run. No request is lost, and none is rejected meanwhile.

An added engine gets requests once it has answered a canary. An engine that is removed gets no new ones. Those that it has not
finished in time go on at another engine, with the same text.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

import msgspec

from thalweg.engine.client.core import ClientCore
from thalweg.engine.client.fleet import Engines, Fleet
from thalweg.engine.client.pause import PauseController
from thalweg.errors import ConfigError, RequestError, UnavailableError

logger = logging.getLogger(__name__)
NOT_ELASTIC = "enable_elastic_ep: the number of engines is fixed; start with --enable-elastic-ep to change it"
DRAIN_SECONDS = 300.0


class FleetScaler:
    """Changes the number of engines of a client, one change at a time."""

    def __init__(self, engines: Engines, client: ClientCore, resting: PauseController) -> None:
        self._engines, self._client, self._resting = engines, client, resting
        self._change: asyncio.Task[None] | None = None
        self.on_resized: Callable[[], None] = lambda: None
        """Called when `EngineConfig.engines` has changed."""

    @property
    def is_scaling(self) -> bool:
        return self._change is not None and not self._change.done()

    async def scale(self, size: int, drain_seconds: float) -> None:
        """Returns when there are `size` engines. A caller that goes away does not stop the change. RequestError names a wrong
        argument. UnavailableError during another change, and while the engines sleep. Other errors are those of an engine that
        does not start. Then the number is as before."""
        fleet, args = self._engines, self._client.frontend.args
        if not isinstance(fleet, Fleet) or not args.enable_elastic_ep:
            raise RequestError(NOT_ELASTIC, "enable_elastic_ep")
        if not 1 <= size <= args.most_engines:
            raise RequestError(
                f"new_data_parallel_size: must be between 1 and {args.most_engines} (elastic_ep_max_dp_size), not {size}",
                "new_data_parallel_size",
            )
        if drain_seconds < 0:
            raise RequestError(f"drain_timeout: must not be negative, not {drain_seconds:g}", "drain_timeout")
        if self.is_scaling:
            raise UnavailableError("the number of engines is changing already; try again later")
        if self._resting.asleep:
            raise UnavailableError("the engines sleep; wake them up first")
        self._change = asyncio.create_task(self._scale(fleet, size, drain_seconds))
        await asyncio.shield(self._change)

    async def _scale(self, fleet: Fleet, size: int, drain_seconds: float) -> None:
        before, events, moved = fleet.size, self._client.events, 0
        try:
            if events is not None and size > before:
                events.resize(size)
            await fleet.grow(size)
            if size < before:
                self._resize(size)
                moved = await fleet.shrink(size, drain_seconds)
        except ConfigError as e:
            raise UnavailableError(f"no engine was added: {e}") from e
        finally:
            self._resize(fleet.size)
            if events is not None:
                events.resize(fleet.size)
        logger.info("%d engines serve instead of %d; %d requests have changed their engine", size, before, moved)

    def _resize(self, size: int) -> None:
        self._client.config = msgspec.structs.replace(self._client.config, engines=size)
        self.on_resized()

    async def close(self) -> None:
        """End a change under way, and the engines that it starts."""
        if self._change is not None:
            self._change.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await self._change


class ScaleMethods:
    """The part of AsyncLLM that changes the number of engines."""

    _scaler: FleetScaler
    _wait_started: Callable[[], Awaitable[None]]

    async def scale_elastic_ep(self, new_data_parallel_size: int, drain_timeout: float = DRAIN_SECONDS) -> None:
        """Add or remove engines, while requests go on. Needs `enable_elastic_ep`. drain_timeout: seconds that the requests of a
        removed engine have to finish there. Later they go on at another engine, with the same text. Errors as of
        `FleetScaler.scale`."""
        await self._wait_started()
        await self._scaler.scale(new_data_parallel_size, drain_timeout)

    async def is_scaling_elastic_ep(self) -> bool:
        """Is the number of engines changing?"""
        return self._scaler.is_scaling

    def on_resized(self, call: Callable[[], None]) -> None:
        """Call this when `config.engines` has changed."""
        self._scaler.on_resized = call
