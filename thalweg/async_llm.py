"""AsyncLLM: the engine in a separate process, for servers and async programs. Imports no tensor framework.

This side owns every request's state (prompt, parameters, seed, emitted tokens). The engine process only computes.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, Self

from thalweg.config import EngineArgs
from thalweg.engine import messages as m
from thalweg.engine.client.adapters import ClientAdapters, DefaultAdapters
from thalweg.engine.client.core import ClientCore, Output, check_trace_headers, with_text
from thalweg.engine.client.fleet import make_engines
from thalweg.engine.client.frontend import Frontend, load_frontend, locate
from thalweg.engine.client.info import InfoMethods
from thalweg.engine.client.operations import OperationMethods
from thalweg.engine.client.pause import PauseController, PauseMethods
from thalweg.engine.client.process import EngineProcess
from thalweg.engine.client.scaling import FleetScaler, ScaleMethods
from thalweg.engine.client.seats import Seat, SuspendableRequest
from thalweg.engine.client.standby import Standby
from thalweg.engine.client.stream import OutputStream
from thalweg.engine.client.weight_transfer import WeightTransferMethods
from thalweg.errors import EngineDeadError, RequestError, ThalwegError
from thalweg.host.marks import mark
from thalweg.lora import LoRARequest
from thalweg.outputs import PoolingOutput, PoolingRequestOutput, RequestOutput
from thalweg.params import PoolingParams, SamplingParams

Pooled = PoolingRequestOutput[PoolingOutput]
MOST_WAITING = 256
"""Unread tokens and log-probabilities of a streaming reader, beyond which its request is suspended until it reads again. It
then resumes: the engine finds most of the sequence in its prefix cache."""

WARM_AFTER = 2.0
"""Seconds from the start until an engine gets the vocabulary, for later grammars. Delayed, because requests that wait for a
start come first."""
JUDGES = 16
"""Grammars validated at once. Others wait for a thread."""
SHORT = 256
"""Characters of stop strings and bad words read directly, in a quarter of a millisecond."""


class StatLogger(Protocol):
    """Notified of every frame and every finished request. Called on the event loop: be quick."""

    def record(self, outputs: m.Outputs) -> None:
        """Every frame of the engine."""

    def record_request(self, output: RequestOutput | Pooled, params: SamplingParams | PoolingParams) -> None:
        """Every finished request, its metrics filled in. A pooling model's are PoolingRequestOutput."""


class AsyncLLM(PauseMethods, ScaleMethods, OperationMethods, WeightTransferMethods, InfoMethods):
    """Many requests at once over one engine process. Make one with `await AsyncLLM.start(args)`, or with `from_engine_args`
    where nothing can be awaited. End it with `shutdown`.

    An engine that dies or hangs is replaced, and open requests resume: their readers see a pause.
    """

    def __init__(self, frontend: Frontend, loggers: Sequence[StatLogger]) -> None:
        """Use `start` or `from_engine_args`."""
        self._frontend, self._loggers = frontend, tuple(loggers)
        self._client = ClientCore(frontend, random.SystemRandom())
        self._opening: asyncio.Task[None] | None = None
        self._open_for_requests = False
        self.talker: AsyncLLM | None = None
        """The engine that speaks the answers. None: there is none, or it has not started."""
        self._streams: dict[str, OutputStream] = {}
        self._stats: m.Stats | None = None
        self._dead: ThalwegError | None = None
        self._reader = ThreadPoolExecutor(1, "parameters")
        self._judges = ThreadPoolExecutor(JUDGES, "grammars")
        self._supervisor = make_engines(
            frontend.args, self._client, self._client.handles,
            on_outputs=self._take, on_convicted=self._convict, on_dead=self._die, vocabulary=self._vocabulary,
        )  # fmt: skip
        self._resting = PauseController(self._supervisor, self._open_ids, self.abort)
        self._scaler = FleetScaler(self._supervisor, self._client, self._resting)
        self._adapters, self._default_adapters = ClientAdapters(self._supervisor, frontend.args), DefaultAdapters(frontend.args)

    @classmethod
    def _make(cls, frontend: Frontend, loggers: Sequence[StatLogger]) -> Self:
        """Subclasses may be made in other ways."""
        result = cls.__new__(cls)
        AsyncLLM.__init__(result, frontend, loggers)
        return result

    @classmethod
    def from_engine_args(
        cls,
        engine_args: EngineArgs,
        start_engine_loop: bool = True,
        usage_context: Any = None,
        stat_loggers: Sequence[StatLogger] | None = None,
    ) -> Self:
        """An engine that starts on first use. Errors of the model's files are raised now. start_engine_loop: start it as soon
        as an event loop runs. usage_context: nothing is reported to anyone."""
        result = cls._make(load_frontend(locate(engine_args)), stat_loggers or ())
        if start_engine_loop:
            with contextlib.suppress(RuntimeError):  # no event loop runs
                result._start_once()
        return result

    def _start_once(self) -> asyncio.Task[None]:
        """The task that starts the engine, shared by all callers."""
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open(None))
        return self._opening

    async def _open(self, engine: asyncio.Task[EngineProcess] | None) -> None:
        """Start the engine, or use the one already starting. Raises the engine's error if it could not start."""
        if engine is None:
            engine = asyncio.create_task(EngineProcess.start(self._frontend.args, None))
        try:
            ready = (await self._supervisor.start(engine)).ready
        except BaseException:
            # Both. The supervisor ends its processes and its engine. But when cancelled as the engine becomes ready, only the
            # task holds the engine. To end it twice does no harm.
            await self._supervisor.stop()
            try:
                await _abandon(engine)
            finally:
                self._client.close()
            raise
        mark("canary answered")
        self.kernel_plan, self.load_seconds = ready.plan, ready.load_seconds
        try:
            await self._open_talker()
        except BaseException:
            await self._supervisor.stop()
            self._client.close()
            raise
        self._client.connect(ready.config)
        if self._client.structured is not None:
            self._warm = asyncio.create_task(self._tell_vocabulary())
        self._open_for_requests = True

    async def _open_talker(self) -> None:
        if self._frontend.args.enable_talker and (args := await asyncio.to_thread(self._frontend.talker_args)) is not None:
            self.talker = await AsyncLLM.start(args)

    async def _wait_admission(self, request_id: str) -> None:
        """Wait until the engine accepts requests. EngineDeadError if it never will again."""
        await self._resting.wait_admission(request_id)
        if self._dead:
            raise EngineDeadError(str(self._dead))

    async def _wait_started(self) -> None:
        """Wait until the engine has started, starting it if necessary. Raises the engine's error if it could not start."""
        if not (self._open_for_requests or self._dead):
            await asyncio.shield(self._start_once())

    @classmethod
    async def start(cls, args: EngineArgs, *, loggers: Sequence[StatLogger] = (), standby: Standby | None = None) -> Self:
        """Ready to serve, after a canary generation. Raises ConfigError, CheckpointError, UnsupportedModelError or
        DeviceError with the reason. standby: a process to start the engine in, already loading its code."""
        located = await asyncio.to_thread(locate, args)
        engine = asyncio.create_task(EngineProcess.start(located.args, standby))  # concurrent with the tokenizer here
        try:
            frontend = await asyncio.to_thread(load_frontend, located)
            mark("tokenizer loaded")
            result = cls._make(frontend, loggers)
        except BaseException:
            await _abandon(engine)
            raise
        if frontend.chat:
            frontend.chat.check_ahead()
        try:
            await result._open(engine)
        except BaseException:
            if frontend.chat:
                frontend.chat.close()
            raise
        return result

    kernel_plan: list[str]
    load_seconds: float
    _warm: asyncio.Task[None] | None = None

    async def _tell_vocabulary(self) -> None:
        await asyncio.sleep(WARM_AFTER)
        with contextlib.suppress(RequestError):  # this model supports no grammar
            self._supervisor.tell(await asyncio.to_thread(self._vocabulary))

    def _vocabulary(self) -> m.GrammarVocabulary:
        assert self._client.structured is not None, "a request with a grammar was judged"
        return self._client.structured.judge.vocabulary

    async def generate(
        self,
        prompt: str | dict[str, Any] | list[int],
        sampling_params: SamplingParams,
        request_id: str,
        *,
        prompt_text: str | None = None,
        lora_request: LoRARequest | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        trace_headers: Mapping[str, str] | None = None,
        priority: int = 0,
        data_parallel_rank: int | None = None,
        first_choice: int = 0,
        seat: Seat | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Outputs in order of arrival, the last with `finished`. A slow reader gets several as one. RequestError before the
        first if the request is wrong. EngineDeadError if this request crashes the engine, or there is no engine any more.
        Closing the generator aborts the request. first_choice: these are choices `first_choice` onwards of a request split
        into parts, and get the seeds of those. prompt_text: the text of a prompt of ids. seat: for servers that share the
        engine among clients (`thalweg serve`)."""
        if data_parallel_rank:
            raise RequestError("data_parallel_rank: requests are not pinned to an engine; omit it", "data_parallel_rank")
        prompt = with_text(prompt, prompt_text)
        stream = await self._begin(
            request_id, prompt, sampling_params, pooling=False, lora_request=lora_request, trace_headers=trace_headers,
            tokenization_kwargs=tokenization_kwargs, priority=priority, first_choice=first_choice, seat=seat,
        )  # fmt: skip
        try:
            while True:
                output = await stream.get()
                if not output.finished:
                    stream.computation.read()
                yield output  # type: ignore[misc]
                if output.finished:
                    return
        finally:
            self._leave(request_id, stream)

    async def encode(
        self,
        prompt: str | dict[str, Any] | list[int],
        pooling_params: PoolingParams,
        request_id: str,
        *,
        lora_request: LoRARequest | None = None,
        trace_headers: Mapping[str, str] | None = None,
        priority: int = 0,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> AsyncGenerator[Pooled, None]:
        """The result of a pooling model: one output, otherwise as `generate`. A failed one has the reason in `error`."""
        stream = await self._begin(
            request_id, prompt, pooling_params, pooling=True, lora_request=lora_request, trace_headers=trace_headers,
            tokenization_kwargs=tokenization_kwargs, priority=priority,
        )  # fmt: skip
        try:
            yield await stream.get()  # type: ignore[misc]
        finally:
            self._leave(request_id, stream)

    async def _begin(
        self, request_id: str, prompt: Any, params: SamplingParams | PoolingParams, *, pooling: bool, priority: int,
        lora_request: LoRARequest | None, tokenization_kwargs: Mapping[str, Any] | None,
        trace_headers: Mapping[str, str] | None, first_choice: int = 0, seat: Seat | None = None,
    ) -> OutputStream:  # fmt: skip
        """The stream of a submitted request. The reader calls `_leave` at the end."""
        check_trace_headers(trace_headers)
        await self._wait_started()
        prompt = await self._client.prompts.read_async(prompt, tokenization_kwargs)
        lora_request = self._default_adapters.choose(prompt, lora_request)
        await self.prepare(params)
        await self._wait_admission(request_id)
        adapter = b"" if lora_request is None else await self._adapters.add(lora_request)
        if request_id in self._streams:
            raise RequestError(f"request_id {request_id!r} is already running", "request_id")
        submission = self._client.prepare(
            request_id, prompt, params, pooling=pooling, priority=priority, first_choice=first_choice,
            lora_request=lora_request, adapter=adapter,
        )  # fmt: skip
        requests = self._client.open(submission)
        held = None if lora_request is None else self._adapters.hold(lora_request, adapter, [r.handle for r in requests])
        work = SuspendableRequest(request_id, self._client.outputs, self._supervisor, self._client.handles, seat)
        stream = self._streams[request_id] = OutputStream(params, work, held)
        self._supervisor.submit(requests)
        return stream

    def _leave(self, request_id: str, stream: OutputStream) -> None:
        """The reader has stopped. A request that has not finished is aborted."""
        if self._streams.get(request_id) is stream:
            del self._streams[request_id]
            self._drop(request_id)
        if stream.adapter is not None:
            self._adapters.release(stream.adapter)

    async def prepare(self, params: SamplingParams | PoolingParams) -> None:
        """Read the slow parameters in advance, on a thread, so that `generate` finds the results cached. RequestError, naming
        the field, as there."""
        if not isinstance(params, SamplingParams):
            return
        if params.structured_outputs is not None:
            await asyncio.get_running_loop().run_in_executor(self._judges, self._client.inputs.prepare, params)
            return
        if sum(map(len, params.stop or ())) + sum(map(len, params.bad_words or ())) > SHORT:
            await asyncio.get_running_loop().run_in_executor(self._reader, self._client.inputs.prepare, params)

    async def abort(self, request_id: str | Iterable[str], internal: bool = False) -> None:
        """End requests. Their readers get a last output with finish_reason "abort". Unknown ids are fine. internal: there is
        one form of ids here."""
        ids = [request_id] if isinstance(request_id, str) else list(request_id)
        for one in ids:
            self._resting.abort_waiting(one)
            last = self._drop(one)
            if last is not None:
                self._deliver(last)
        if self.talker is not None:
            await self.talker.abort(ids)

    def _drop(self, request_id: str) -> Output | None:
        handles, last = self._client.abort(request_id)
        self._supervisor.abort(handles)
        return last

    async def get_supported_tasks(self) -> tuple[str, ...]:
        """Tasks that the model supports."""
        await self._wait_started()
        return self.config.model.tasks

    def _open_ids(self) -> list[str]:
        return list(self._streams)

    def shutdown(self, timeout: float | None = None) -> asyncio.Task[None]:
        """End the engine process. Open requests get EngineDeadError. It begins at once, and the returned task can be awaited.
        timeout: seconds; None: no limit."""
        return asyncio.get_running_loop().create_task(self._shut(timeout))

    async def _shut(self, timeout: float | None) -> None:
        if self._warm is not None:
            self._warm.cancel()
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
        if self._transfer is not None:  # first: the process may exit before the engines have ended
            await self._transfer.close()
        await asyncio.wait_for(self._end_engines(), timeout)
        if self.talker is not None:
            await self.talker.shutdown(timeout)
        self._client.close()
        self._die(EngineDeadError("the engine was shut down"))

    async def _end_engines(self) -> None:
        await self._scaler.close()
        await self._supervisor.stop()

    def _take(self, frame: m.Outputs) -> None:
        if frame.stats is not None:
            self._stats = frame.stats
        self._adapters.traffic.record(frame)
        outputs, stopped = self._client.process(frame)
        self._supervisor.abort(stopped)
        for logger in self._loggers:
            logger.record(frame)
        for output in outputs:
            self._deliver(output)

    def _deliver(self, output: Output) -> None:
        stream = self._streams.get(output.request_id)
        if stream is None:
            return
        if output.finished:
            del self._streams[output.request_id]
            for logger in self._loggers:
                logger.record_request(output, stream.params)
        stream.put(output)
        if stream.waiting > MOST_WAITING and not output.finished:
            stream.computation.stall()

    def _convict(self, handle: int, why: str) -> None:
        request_id = self._client.fail(handle, why)
        if request_id is not None and request_id in self._streams:
            self._streams.pop(request_id).fail(EngineDeadError(why))

    def _die(self, why: ThalwegError) -> None:
        self._dead = self._dead or why
        self._resting.close()
        self._client.fail_all(str(why))
        for stream in self._streams.values():
            stream.fail(EngineDeadError(str(why)))
        self._streams.clear()


async def _abandon(engine: asyncio.Task[EngineProcess]) -> None:
    """End a starting or started engine. One that failed to start has ended."""
    engine.cancel()
    with contextlib.suppress(asyncio.CancelledError, ThalwegError):
        await (await engine).stop()
