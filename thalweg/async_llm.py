"""AsyncLLM: the engine in a process of its own, for servers and async programs. Imports no tensor framework.

This side owns every request's truth (prompt, parameters, seed, emitted tokens); the engine process only computes.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import Any, Protocol

from thalweg.config import EngineArgs, EngineConfig
from thalweg.engine import messages as m
from thalweg.engine.client.frontend import Frontend, load_frontend
from thalweg.engine.client.inputs import InputProcessor
from thalweg.engine.client.outputs import OutputProcessor
from thalweg.engine.client.process import EngineProcess
from thalweg.errors import EngineDeadError, RequestError, ThalwegError
from thalweg.outputs import RequestOutput
from thalweg.params import SamplingParams
from thalweg.text.template import ChatTemplate
from thalweg.text.tokenizer import Tokenizer


class StatLogger(Protocol):
    """Told about everything that comes back. Called on the event loop: be quick."""

    def record(self, outputs: m.Outputs) -> None:
        """Every frame of the engine."""

    def finished(self, output: RequestOutput, params: SamplingParams) -> None:
        """Every finished request, its metrics filled in."""


class _Stream:
    """One request's outputs on their way to its reader."""

    __slots__ = ("params", "queue")

    def __init__(self, params: SamplingParams) -> None:
        self.params = params
        self.queue: asyncio.Queue[RequestOutput | ThalwegError] = asyncio.Queue()


class AsyncLLM:
    """Many requests at once over one engine process. Make one with `await AsyncLLM.start(args)`, end it with `shutdown`."""

    def __init__(self, frontend: Frontend, engine: EngineProcess, loggers: Sequence[StatLogger]) -> None:
        self.config: EngineConfig = engine.ready.config
        self.kernel_plan = engine.ready.plan
        self.load_seconds = engine.ready.load_seconds
        self._frontend, self._engine, self._loggers = frontend, engine, tuple(loggers)
        self._inputs = InputProcessor(
            self.config, frontend.tokenizer, eos_ids=frontend.eos_ids, seed_source=random.SystemRandom()
        )
        self._outputs = OutputProcessor(frontend.tokenizer)
        self._handles = itertools.count(1)
        self._streams: dict[str, _Stream] = {}
        self._replies: dict[int, asyncio.Future[bool]] = {}
        self._stats: m.Stats | None = None
        self._dead: ThalwegError | None = None
        self._reader = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, args: EngineArgs, *, loggers: Sequence[StatLogger] = ()) -> AsyncLLM:
        """Ready to serve; or raises ConfigError, CheckpointError, UnsupportedModelError, DeviceError with the reason."""
        frontend = await asyncio.to_thread(load_frontend, args)
        return cls(frontend, await EngineProcess.start(frontend.args), loggers)

    @property
    def tokenizer(self) -> Tokenizer | None:
        return self._frontend.tokenizer

    @property
    def chat_template(self) -> ChatTemplate | None:
        return self._frontend.template

    @property
    def default_sampling(self) -> dict[str, Any]:
        """SamplingParams fields of the model's generation config, for what a client leaves out."""
        return self._frontend.default_sampling

    @property
    def model_names(self) -> list[str]:
        return self._frontend.names

    def stats(self) -> m.Stats | None:
        """The engine's latest snapshot; None before its first step."""
        return self._stats

    async def generate(
        self, prompt: str | dict[str, Any] | list[int], sampling_params: SamplingParams, request_id: str, *, priority: int = 0
    ) -> AsyncGenerator[RequestOutput, None]:
        """Outputs as they come, the last with `finished`. RequestError before the first if the request is wrong;
        EngineDeadError if the engine dies. Closing the generator aborts the request."""
        if self._dead:
            raise EngineDeadError(str(self._dead))
        if request_id in self._streams:
            raise RequestError(f"request_id {request_id!r} is already running", "request_id")
        submission = self._inputs.process(request_id, prompt, sampling_params, priority=priority, handles=self._handles)
        stream = self._streams[request_id] = _Stream(sampling_params)
        self._outputs.add(submission, time.monotonic())
        try:
            self._engine.post(m.Add(submission.requests))
            while True:
                item = await stream.queue.get()
                if isinstance(item, ThalwegError):
                    raise item
                yield item
                if item.finished:
                    return
        finally:
            if self._streams.get(request_id) is stream:  # not finished: the reader went away
                del self._streams[request_id]
                self._drop(request_id)

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """End requests; their readers get a last output with finish_reason "abort". Unknown ids are fine."""
        for one in [request_id] if isinstance(request_id, str) else list(request_id):
            last = self._drop(one)
            if last is not None:
                self._deliver(last)

    def _drop(self, request_id: str) -> RequestOutput | None:
        handles, last = self._outputs.abort(request_id)
        if handles and not self._dead:
            with contextlib.suppress(EngineDeadError):  # dying: it has forgotten them already
                self._engine.post(m.Abort(handles))
        return last

    async def check_health(self) -> None:
        """EngineDeadError if it cannot serve."""
        if self._dead or not self._engine.alive:
            raise EngineDeadError(str(self._dead or "the engine process is gone"))

    async def reset_prefix_cache(self) -> bool:
        """Forget every cached prefix. Running requests go on; what they have computed is not found by others."""
        i = next(self._handles)
        reply: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._replies[i] = reply
        self._engine.post(m.Control(i, "reset_prefix_cache"))
        return await reply

    async def shutdown(self) -> None:
        """End the engine process. Open requests get EngineDeadError."""
        self._reader.cancel()
        await self._engine.stop()
        self._die(EngineDeadError("the engine was shut down"))

    async def _read(self) -> None:
        try:
            while True:
                message = await self._engine.receive()
                if isinstance(message, m.Reply):
                    self._replies.pop(message.id).set_result(message.ok)
                else:
                    self._take(message)
        except ThalwegError as e:
            self._die(e)

    def _take(self, outputs: m.Outputs) -> None:
        if outputs.stats is not None:
            self._stats = outputs.stats
        processed = self._outputs.process(outputs)
        if processed.abort:
            self._engine.post(m.Abort(processed.abort))
        for logger in self._loggers:
            logger.record(outputs)
        for output in processed.outputs:
            self._deliver(output)

    def _deliver(self, output: RequestOutput) -> None:
        stream = self._streams.get(output.request_id)
        if stream is None:
            return
        if output.finished:
            del self._streams[output.request_id]
            for logger in self._loggers:
                logger.finished(output, stream.params)
        stream.queue.put_nowait(output)

    def _die(self, why: ThalwegError) -> None:
        self._dead = self._dead or why
        for stream in self._streams.values():
            stream.queue.put_nowait(EngineDeadError(str(why)))
        self._streams.clear()
        for reply in self._replies.values():
            reply.cancel()
