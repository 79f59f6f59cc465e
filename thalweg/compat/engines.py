"""Engines under vLLM's names, made of its configuration object, and its way to add requests."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from thalweg import async_llm
from thalweg.async_llm import StatLogger
from thalweg.compat.configs import VllmConfig
from thalweg.engine.client.core import Output, check_arrival_time
from thalweg.engine.client.frontend import load_frontend, locate
from thalweg.engine.client.stream import OutputStream
from thalweg.errors import ConfigError
from thalweg.lora import LoRARequest
from thalweg.offline import engine as offline
from thalweg.params import PoolingParams, SamplingParams

logger = logging.getLogger(__name__)


class LLMEngine(offline.LLMEngine):
    """thalweg's, which can be made of a VllmConfig too."""

    @classmethod
    def from_vllm_config(
        cls,
        vllm_config: VllmConfig,
        usage_context: Any = None,
        stat_loggers: Any = None,
        disable_log_stats: bool = False,
    ) -> LLMEngine:
        """disable_log_stats: an engine in the calling thread logs none. The rest as `from_engine_args`."""
        result = cls.from_engine_args(_check_config(vllm_config).engine_args, usage_context, stat_loggers)
        assert isinstance(result, LLMEngine)
        return result


class AsyncLLM(async_llm.AsyncLLM):
    """thalweg's, made of a VllmConfig. It starts when it is first used, or as soon as an event loop runs."""

    def __init__(
        self,
        vllm_config: VllmConfig,
        log_stats: bool = True,
        usage_context: Any = None,
        log_requests: bool = False,
        start_engine_loop: bool = True,
        stat_loggers: Sequence[StatLogger] | None = None,
    ) -> None:
        """log_stats: False tells the stat_loggers nothing. log_requests: a line of the log for each. usage_context: nothing is
        reported to anyone."""
        super().__init__(
            load_frontend(locate(_check_config(vllm_config).engine_args)), (stat_loggers or ()) if log_stats else ()
        )
        self._log_requests = log_requests
        if start_engine_loop:
            with contextlib.suppress(RuntimeError):  # no event loop runs
                self._start_once()

    _log_requests = False

    @classmethod
    def from_vllm_config(
        cls,
        vllm_config: VllmConfig,
        start_engine_loop: bool = True,
        usage_context: Any = None,
        stat_loggers: Sequence[StatLogger] | None = None,
        enable_log_requests: bool = False,
        disable_log_stats: bool = False,
    ) -> AsyncLLM:
        return cls(vllm_config, not disable_log_stats, usage_context, enable_log_requests, start_engine_loop, stat_loggers)

    async def _begin(self, request_id: str, prompt: Any, params: Any, **more: Any) -> OutputStream:
        if self._log_requests:
            logger.info("request %s: %r", request_id, params)
        return await super()._begin(request_id, prompt, params, **more)

    async def add_request(
        self,
        request_id: str,
        prompt: Any,
        params: SamplingParams | PoolingParams,
        arrival_time: float | None = None,
        lora_request: LoRARequest | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        trace_headers: Mapping[str, str] | None = None,
        priority: int = 0,
    ) -> Collector:
        """Add a request. The returned collector yields its outputs, and raises RequestError."""
        check_arrival_time(arrival_time)
        run = self.encode if isinstance(params, PoolingParams) else self.generate
        outputs = run(
            prompt, params, request_id, lora_request=lora_request, tokenization_kwargs=tokenization_kwargs,  # type: ignore[arg-type]
            trace_headers=trace_headers, priority=priority,
        )  # fmt: skip
        return Collector(request_id, outputs)


class Collector:
    """The outputs of one request. `close` aborts it, as does dropping the last reference."""

    def __init__(self, request_id: str, outputs: AsyncGenerator[Output, None]) -> None:
        self.request_id = request_id
        self._outputs: asyncio.Queue[Output | BaseException] = asyncio.Queue()
        self._task = asyncio.get_running_loop().create_task(_collect(outputs, self._outputs))

    def get_nowait(self) -> Output | None:
        """The next output. None: none yet. Raises the error of a failed request."""
        return None if self._outputs.empty() else _unwrap(self._outputs.get_nowait())

    async def get(self) -> Output:
        """Wait for the next output. Not callable after the last one, where `finished` is true."""
        return _unwrap(await self._outputs.get())

    def close(self) -> None:
        self._task.cancel()

    def __del__(self) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop has ended, and with it the request
            self._task.cancel()


async def _collect(outputs: AsyncGenerator[Output, None], to: asyncio.Queue[Output | BaseException]) -> None:
    try:
        async with contextlib.aclosing(outputs):
            async for output in outputs:
                to.put_nowait(output)
    except Exception as e:
        to.put_nowait(e)


def _unwrap(found: Output | BaseException) -> Output:
    if isinstance(found, BaseException):
        raise found
    return found


def _check_config(vllm_config: object) -> VllmConfig:
    if not isinstance(vllm_config, VllmConfig):
        raise ConfigError("vllm_config: must be made by EngineArgs(...).create_engine_config()")
    return vllm_config
