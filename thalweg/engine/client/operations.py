"""Methods of AsyncLLM that change the engine between requests: load adapters, forget caches, record profiles."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from thalweg.engine.client.adapters import ClientAdapters, DefaultAdapters
from thalweg.engine.client.core import check_reset
from thalweg.engine.client.fleet import Engines
from thalweg.engine.client.frontend import Frontend
from thalweg.engine.client.standby import Standby
from thalweg.lora import LoRARequest
from thalweg.options.observation import read_profiler_config


class OperationMethods:
    """The part of AsyncLLM that operates its engine."""

    _adapters: ClientAdapters
    _default_adapters: DefaultAdapters
    _frontend: Frontend
    _wait_started: Callable[[], Awaitable[None]]
    _supervisor: Engines

    async def add_lora(self, lora_request: LoRARequest) -> bool:
        """Load an adapter before the first request names it. RequestError, CheckpointError or UnsupportedModelError."""
        await self._wait_started()
        await self._adapters.add(lora_request)
        return True

    async def add_default_loras(self) -> None:
        """Load the adapters of `default_mm_loras`, so that faults of their files show before requests. As `add_lora`."""
        for request in self._default_adapters.requests:
            await self.add_lora(request)

    async def remove_lora(self, lora_id: int) -> bool:
        """Forget the adapter of this lora_int_id. False: there is none. RequestError while requests use it."""
        return self._adapters.remove(lora_id)

    def retire_lora(self, lora_id: int) -> bool:
        """Forget the name of this lora_int_id now. Requests that use the adapter finish with it. False: there is none."""
        return self._adapters.retire(lora_id)

    async def pin_lora(self, lora_id: int) -> bool:
        """Keep the adapter of this lora_int_id in host memory while no request uses it. RequestError if there is none."""
        self._adapters.pin(lora_id)
        return True

    def adapters_in_use(self) -> tuple[list[str], list[str]]:
        """Names of adapters with running sequences, and of those with waiting ones."""
        return self._adapters.traffic.names()

    async def list_loras(self) -> set[int]:
        """lora_int_id of each adapter that was named."""
        return self._adapters.numbers()

    async def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """Forget every cached prefix. Running requests go on. Later ones do not find the blocks those have computed."""
        check_reset(reset_running_requests, reset_connector)
        await self._wait_started()
        return await self._supervisor.reset_prefix_cache()

    async def reset_mm_cache(self) -> None:
        """Forget processed images: later requests read them again."""
        if self._frontend.media:
            self._frontend.media.forget()

    async def reset_encoder_cache(self) -> None:
        """No operation: outputs of the encoder depend only on the image, so none goes stale."""

    def adopt_standby(self, standby: Standby) -> None:
        """Start the next engine from this process, which has loaded the engine's code. It is this engine's from now on."""
        self._supervisor.adopt_standby(standby)

    @property
    def profiles(self) -> bool:
        """May steps be profiled?"""
        return read_profiler_config(self._frontend.args) is not None

    async def start_profile(self) -> None:
        """Record the operations of steps from now on. RequestError without `profiler_config`, on a device without torch, and
        while a profile runs."""
        await self._supervisor.control("start_profile")

    async def stop_profile(self) -> None:
        """Write the trace to the folder of `profiler_config`. RequestError if no profile runs, or it is not writable."""
        await self._supervisor.control("stop_profile")
