"""AsyncLLM: the engine in a process of its own, for servers and async programs. Imports no tensor framework.

This side owns every request's truth (prompt, parameters, seed, emitted tokens). The engine process only computes.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, Self

from thalweg.config import EngineArgs, EngineConfig
from thalweg.engine import messages as m
from thalweg.engine.client.about import About
from thalweg.engine.client.adapters import ClientAdapters
from thalweg.engine.client.fleet import make_engines
from thalweg.engine.client.frontend import Frontend, load_frontend, locate
from thalweg.engine.client.grammars import StructuredOutputs
from thalweg.engine.client.inputs import InputProcessor, with_adapter
from thalweg.engine.client.media import NAME as MULTI_MODAL
from thalweg.engine.client.media import Media
from thalweg.engine.client.outputs import OutputProcessor
from thalweg.engine.client.pairs import shortened, tokenization
from thalweg.engine.client.pooled import AllOpen, PoolingOutputs
from thalweg.engine.client.process import EngineProcess
from thalweg.engine.client.resting import Resting, Rests
from thalweg.engine.client.seats import Computation, Seat
from thalweg.engine.client.standby import Standby
from thalweg.engine.client.stream import Stream
from thalweg.errors import ConfigError, EngineDeadError, RequestError, ThalwegError
from thalweg.host.marks import mark
from thalweg.lora import LoRARequest
from thalweg.options.observation import read_profiler_config
from thalweg.outputs import PoolingOutput, PoolingRequestOutput, RequestMetrics, RequestOutput
from thalweg.params import PoolingParams, SamplingParams
from thalweg.prompts import meant
from thalweg.template.chat import Chat
from thalweg.text.cut import asked as cuts
from thalweg.text.encoder import INLINE, Encoder
from thalweg.text.tokenizer import Tokenizer

Pooled = PoolingRequestOutput[PoolingOutput]
MOST_WAITING = 256
"""Tokens and log-probabilities a streaming reader may leave untaken before its request stops being computed, until it reads
again. Then it goes on where it was: the engine finds most of it in its prefix cache."""

WARM_AFTER = 2.0
"""Seconds from the start to when an engine is told the vocabulary, for grammars to come. Not at once: who waits for a start
asks for text first."""
JUDGES = 16
"""Grammars that wait for their verdict at once. Others wait for a thread."""
SHORT = 256
"""Characters of stop strings and bad words that are read at once, in a quarter of a millisecond."""


class StatLogger(Protocol):
    """Told about everything that comes back. Called on the event loop: be quick."""

    def record(self, outputs: m.Outputs) -> None:
        """Every frame of the engine."""

    def finished(self, output: RequestOutput | Pooled, params: SamplingParams | PoolingParams) -> None:
        """Every finished request, its metrics filled in. A pooling model's are PoolingRequestOutput."""


class AsyncLLM(Rests, About):
    """Many requests at once over one engine process. Make one with `await AsyncLLM.start(args)`, or with `from_engine_args`
    where nothing can be awaited. End it with `shutdown`.

    An engine that dies or hangs is replaced, and open requests go on where they were: their readers see a pause.
    """

    def __init__(self, frontend: Frontend, loggers: Sequence[StatLogger]) -> None:
        """Use `start` or `from_engine_args`."""
        self._frontend, self._loggers = frontend, tuple(loggers)
        self._opening: asyncio.Task[None] | None = None
        self._open_for_requests = False
        self._outputs = OutputProcessor(frontend.tokenizer, frontend.args.stream_interval)
        self._pooled = PoolingOutputs()
        self._pooling: dict[str, tuple[asyncio.Future[Pooled], PoolingParams]] = {}
        self._handles = itertools.count(1)
        self._streams: dict[str, Stream] = {}
        self._stats: m.Stats | None = None
        self._dead: ThalwegError | None = None
        self._reader = ThreadPoolExecutor(1, "parameters")
        self._judges = ThreadPoolExecutor(JUDGES, "grammars")
        self._supervisor = make_engines(
            frontend.args, AllOpen(self._outputs, self._pooled), self._handles,
            on_outputs=self._take, on_convicted=self._convict, on_dead=self._die, vocabulary=self._vocabulary,
        )  # fmt: skip
        self._resting = Resting(self._supervisor, self._open_ids, self.abort)
        args = frontend.args
        self._adapters = ClientAdapters(self._supervisor, args.enable_lora, args.max_cpu_loras or args.max_loras)

    @classmethod
    def _of(cls, frontend: Frontend, loggers: Sequence[StatLogger]) -> Self:
        """Subclasses may be made in other ways."""
        made = cls.__new__(cls)
        AsyncLLM.__init__(made, frontend, loggers)
        return made

    @classmethod
    def from_engine_args(
        cls,
        engine_args: EngineArgs,
        start_engine_loop: bool = True,
        usage_context: Any = None,
        stat_loggers: Sequence[StatLogger] | None = None,
    ) -> Self:
        """An engine that starts when it is first used; what is wrong with the model's files is told now. start_engine_loop:
        start it as soon as an event loop runs. usage_context: nothing is reported to anyone."""
        made = cls._of(load_frontend(locate(engine_args)), stat_loggers or ())
        if start_engine_loop:
            with contextlib.suppress(RuntimeError):  # no event loop runs
                made._opened()
        return made

    def _opened(self) -> asyncio.Task[None]:
        """The task that starts the engine: one for all who wait."""
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open(None))
        return self._opening

    async def _open(self, engine: asyncio.Task[EngineProcess] | None) -> None:
        """Starts the engine, or takes the one that is starting. Raises what it said if it could not."""
        if engine is None:
            engine = asyncio.create_task(EngineProcess.start(self._frontend.args, None))
        try:
            ready = (await self._supervisor.start(engine)).ready
        except BaseException:
            # Both. The supervisor ends what it made and the engine it holds. But when cancelled as the engine becomes
            # ready, only the task holds it. To end it twice does no harm.
            await self._supervisor.stop()
            await _abandon(engine)
            raise
        mark("canary answered")
        self.config, self.kernel_plan, self.load_seconds = ready.config, ready.plan, ready.load_seconds
        tokenizer = self._frontend.tokenizer
        self._structured = self._frontend.structured(ready.config)
        self._inputs = InputProcessor(
            ready.config, tokenizer, eos_ids=self._frontend.eos_ids, seed_source=random.SystemRandom(),
            structured=self._structured, media=self._frontend.media, marks=self._frontend.marks,
        )  # fmt: skip
        if self._structured is not None:
            self._warm = asyncio.create_task(self._tell_vocabulary())
        self._encoder = Encoder(tokenizer, ready.config.model.max_len) if tokenizer else None
        self._open_for_requests = True

    async def _admitted(self, request_id: str) -> None:
        """Returns when the engine takes requests. EngineDeadError if it never will again."""
        await self._resting.admitted(request_id)
        if self._dead:
            raise EngineDeadError(str(self._dead))

    async def _started(self) -> None:
        """Returns when the engine has started: this starts it if nobody did. Raises what it said if it could not."""
        if not (self._open_for_requests or self._dead):
            await asyncio.shield(self._opened())

    @classmethod
    async def start(cls, args: EngineArgs, *, loggers: Sequence[StatLogger] = (), standby: Standby | None = None) -> Self:
        """Ready to serve, after a canary generation. Raises ConfigError, CheckpointError, UnsupportedModelError or
        DeviceError with the reason. `standby`: a process to make the engine of, already loading its code."""
        located = await asyncio.to_thread(locate, args)
        engine = asyncio.create_task(EngineProcess.start(located.args, standby))  # it loads while the tokenizer does here
        try:
            frontend = await asyncio.to_thread(load_frontend, located)
            mark("tokenizer loaded")
            made = cls._of(frontend, loggers)
        except BaseException:
            await _abandon(engine)
            raise
        if frontend.chat:
            frontend.chat.check_ahead()
        try:
            await made._open(engine)
        except BaseException:
            if frontend.chat:
                frontend.chat.close()
            raise
        return made

    config: EngineConfig
    kernel_plan: list[str]
    load_seconds: float
    _inputs: InputProcessor
    _encoder: Encoder | None
    _structured: StructuredOutputs | None = None
    _warm: asyncio.Task[None] | None = None

    async def _tell_vocabulary(self) -> None:
        await asyncio.sleep(WARM_AFTER)
        with contextlib.suppress(RequestError):  # this model can follow no grammar
            self._supervisor.tell(await asyncio.to_thread(self._vocabulary))

    def _vocabulary(self) -> m.Vocabulary:
        assert self._structured is not None, "a request with a grammar was judged"
        return self._structured.judge.vocabulary

    @property
    def tokenizer(self) -> Tokenizer | None:
        return self._frontend.tokenizer

    @property
    def chat(self) -> Chat | None:
        """What makes prompts of conversations. None without a tokenizer."""
        return self._frontend.chat

    @property
    def media(self) -> Media | None:
        """Who reads images. None: the model takes text alone."""
        return self._frontend.media

    @property
    def default_sampling(self) -> dict[str, Any]:
        """SamplingParams fields of the model's generation config, for what a client leaves out."""
        return self._frontend.default_sampling

    @property
    def model_names(self) -> list[str]:
        return self._frontend.names

    @property
    def state(self) -> str:
        """starting | ready | restarting | sleeping | failed | stopped"""
        return self._supervisor.state

    @property
    def ready(self) -> bool:
        """Could a request be served now?"""
        return not self.why_not_ready

    @property
    def why_not_ready(self) -> str:
        return self._supervisor.why_not_ready

    @property
    def restarts(self) -> int:
        """How many times the engine process has been replaced."""
        return self._supervisor.restarts

    @property
    def engine_pid(self) -> int | None:
        return self._supervisor.pid

    def stats(self) -> m.Stats | None:
        """The engine's latest snapshot. None before its first step."""
        return self._stats

    def progress(self, request_id: str) -> RequestMetrics | None:
        """What is known of an open request's times so far. None: it is not open, or is for a vector."""
        return self._outputs.metrics(request_id)

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
        """Outputs as they come, the last with `finished`. A slow reader gets several as one. RequestError before the
        first if the request is wrong. EngineDeadError if this request crashes the engine, or there is no engine any
        more. Closing the generator aborts the request. first_choice: these are choices `first_choice` onwards of a
        request that is run in parts, and get the seeds of those. prompt_text: the text of a prompt of ids. seat: for
        whoever shares the engine among clients (`thalweg serve`)."""
        _only_here(trace_headers, data_parallel_rank)
        await self._started()
        prompt = self._cut(_with_text(prompt, prompt_text), tokenization_kwargs)
        prompt = await self._encoded(prompt)
        await self._prepared(sampling_params)
        await self._admitted(request_id)
        adapter = await self._adapters.add(lora_request) if lora_request is not None else b""
        if request_id in self._streams:
            raise RequestError(f"request_id {request_id!r} is already running", "request_id")
        submission = self._inputs.process(
            request_id, prompt, sampling_params, priority=priority, handles=self._handles, first_choice=first_choice
        )
        submission = submission if lora_request is None else with_adapter(submission, lora_request, adapter)
        self._outputs.add(submission, time.monotonic())
        self._adapters.hold(adapter)
        work = Computation(request_id, self._outputs, self._supervisor, self._handles, seat)
        stream = self._streams[request_id] = Stream(sampling_params, work)
        self._supervisor.submit(submission.requests)
        try:
            while True:
                output = await stream.get()
                if not output.finished:
                    work.read()
                yield output
                if output.finished:
                    return
        finally:
            if self._streams.get(request_id) is stream:  # not finished: the reader went away
                del self._streams[request_id]
                self._drop(request_id)
            self._adapters.release(adapter)

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
        """What a pooling model gives of the prompt: one output, for which `generate` says the rest. One that could not be
        made says why in `error`."""
        _only_here(trace_headers, None)
        await self._started()
        prompt = await self._encoded(self._cut(prompt, tokenization_kwargs))
        await self._admitted(request_id)
        adapter = await self._adapters.add(lora_request) if lora_request is not None else b""
        if request_id in self._pooling:
            raise RequestError(f"request_id {request_id!r} is already running", "request_id")
        submission = self._inputs.process_pooling(request_id, prompt, pooling_params, priority=priority, handles=self._handles)
        submission = submission if lora_request is None else with_adapter(submission, lora_request, adapter)
        answer: asyncio.Future[Pooled] = asyncio.get_running_loop().create_future()
        self._pooling[request_id] = answer, pooling_params
        self._pooled.add(submission, time.monotonic())
        self._supervisor.submit([submission.request])
        self._adapters.hold(adapter)
        try:
            yield await answer
        finally:
            self._adapters.release(adapter)
            if self._pooling.pop(request_id, None) is not None:  # not finished: the reader went away
                self._supervisor.abort(list(self._pooled.abort([request_id])))

    async def add_lora(self, lora_request: LoRARequest) -> bool:
        """Load an adapter before the first request names it. RequestError, CheckpointError or UnsupportedModelError."""
        await self._started()
        await self._adapters.add(lora_request)
        return True

    async def remove_lora(self, lora_id: int) -> bool:
        """Forget the adapter of this lora_int_id. False: there is none. RequestError while requests use it."""
        return self._adapters.remove(lora_id)

    async def list_loras(self) -> set[int]:
        """lora_int_id of each adapter that was named."""
        return self._adapters.numbers()

    def check_pooling(self, params: PoolingParams) -> None:
        """RequestError, naming the field, for what the model cannot do of these, whatever the prompt."""
        self._inputs.check_pooling(params)

    def _cut(self, prompt: Any, said: Mapping[str, Any] | None) -> Any:
        """The prompt as tokenization_kwargs say."""
        if not said:
            return prompt
        tokenizer = self._frontend.tokenizer
        keep, side, special = tokenization(said)
        cut = cuts(keep, side, self.config.model.max_len, tokenizer.truncation_side if tokenizer else "right")
        return shortened(tokenizer, prompt, cut, special)

    async def _encoded(self, prompt: Any) -> Any:
        """The prompt, its ids added if it is so long a text that encoding it would hold up the event loop."""
        prompt = meant(prompt)
        fields = {"prompt": prompt} if isinstance(prompt, str) else prompt
        if self.media is not None and isinstance(fields, dict) and MULTI_MODAL in fields:
            return await self.media.prompt_async(fields)
        if self._encoder is None or not isinstance(fields, dict) or "prompt_token_ids" in fields:
            return prompt
        text = fields.get("prompt")
        if not isinstance(text, str) or len(text) <= INLINE:
            return prompt
        (ids,) = await self._encoder.encode([text])
        return {**fields, "prompt_token_ids": ids}

    async def prepare(self, params: SamplingParams) -> None:
        """Read what takes long of the parameters: `generate` finds it read. RequestError, naming the field, as there."""
        await self._prepared(params)

    async def _prepared(self, params: Any) -> None:
        """What takes long to read of the parameters is read on a thread."""
        if not isinstance(params, SamplingParams):
            return  # refused by name a moment later
        if params.structured_outputs is not None:
            await asyncio.get_running_loop().run_in_executor(self._judges, self._inputs.prepare, params)
            return
        if sum(map(len, params.stop or ())) + sum(map(len, params.bad_words or ())) > SHORT:
            await asyncio.get_running_loop().run_in_executor(self._reader, self._inputs.prepare, params)

    async def abort(self, request_id: str | Iterable[str], internal: bool = False) -> None:
        """End requests. Their readers get a last output with finish_reason "abort". Unknown ids are fine. internal: there is
        one form of ids here."""
        for one in [request_id] if isinstance(request_id, str) else list(request_id):
            self._resting.aborted(one)
            last = self._drop(one)
            if last is not None:
                self._deliver(last)
            stopped = self._pooled.abort([one])
            self._supervisor.abort(list(stopped))
            for output in stopped.values():
                self._answer(output)

    def _drop(self, request_id: str) -> RequestOutput | None:
        handles, last = self._outputs.abort(request_id)
        self._supervisor.abort(handles)
        return last

    async def check_health(self) -> None:
        """EngineDeadError if there is no engine and there will be none. A restart is no illness: see `ready`."""
        if self._dead or self.state in ("failed", "stopped"):
            raise EngineDeadError(str(self._dead or self.why_not_ready))

    async def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """Forget every cached prefix. Running requests go on. Others do not find what they have computed."""
        if reset_running_requests or reset_connector:
            name = "reset_running_requests" if reset_running_requests else "reset_connector"
            raise ConfigError(f"{name}: running requests keep their blocks, and there is no connector; leave it out")
        await self._started()
        return await self._supervisor.reset_prefix_cache()

    async def get_supported_tasks(self) -> tuple[str, ...]:
        """What may be asked of the model."""
        await self._started()
        return self.config.model.tasks

    def get_tokenizer(self) -> Tokenizer:
        """ConfigError if the tokenizer was skipped."""
        if self._frontend.tokenizer is None:
            raise ConfigError("skip_tokenizer_init: there is no tokenizer")
        return self._frontend.tokenizer

    @property
    def profiles(self) -> bool:
        """May steps be profiled?"""
        return read_profiler_config(self._frontend.args) is not None

    async def start_profile(self) -> None:
        """Record the operations of steps from now on. RequestError without `profiler_config`, on a device without torch, and
        while a profile runs."""
        await self._supervisor.control("start_profile")

    async def stop_profile(self) -> None:
        """Write the trace to the folder of `profiler_config`. RequestError if no profile runs, or the folder takes none."""
        await self._supervisor.control("stop_profile")

    def _open_ids(self) -> list[str]:
        return [*self._streams, *self._pooling]

    def shutdown(self, timeout: float | None = None) -> asyncio.Task[None]:
        """End the engine process. Open requests get EngineDeadError. It begins at once, and what is returned can be awaited.
        timeout: seconds for it; None: as long as it takes."""
        return asyncio.get_running_loop().create_task(self._shut(timeout))

    async def _shut(self, timeout: float | None) -> None:
        if self._warm is not None:
            self._warm.cancel()
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
        await asyncio.wait_for(self._supervisor.stop(), timeout)
        if self._frontend.chat:
            self._frontend.chat.close()
        if self._frontend.media:
            self._frontend.media.close()
        if self._structured is not None:
            self._structured.close()
        self._die(EngineDeadError("the engine was shut down"))

    def _take(self, frame: m.Outputs) -> None:
        if frame.stats is not None:
            self._stats = frame.stats
        processed = self._outputs.process(frame)
        self._supervisor.abort(processed.abort)
        for logger in self._loggers:
            logger.record(frame)
        for output in processed.outputs:
            self._deliver(output)
        for pooled in self._pooled.process(frame):
            self._answer(pooled)

    def _answer(self, output: Pooled) -> None:
        answer, params = self._pooling.pop(output.request_id)
        for logger in self._loggers:
            logger.finished(output, params)
        if not answer.done():
            answer.set_result(output)

    def _deliver(self, output: RequestOutput) -> None:
        stream = self._streams.get(output.request_id)
        if stream is None:
            return
        if output.finished:
            del self._streams[output.request_id]
            for logger in self._loggers:
                logger.finished(output, stream.params)
        stream.put(output)
        if stream.waiting > MOST_WAITING and not output.finished:
            stream.computation.stall()

    def _convict(self, handle: int, why: str) -> None:
        closed = self._outputs.fail(handle, why)
        if closed is not None and closed[0] in self._streams:
            self._streams.pop(closed[0]).fail(EngineDeadError(why))
        request_id = self._pooled.fail(handle)
        if request_id is not None:
            _fail(self._pooling.pop(request_id)[0], why)

    def _die(self, why: ThalwegError) -> None:
        self._dead = self._dead or why
        self._resting.close()
        self._outputs.fail_all(str(why))
        for stream in self._streams.values():
            stream.fail(EngineDeadError(str(why)))
        self._streams.clear()
        self._pooled.fail_all()
        for answer, _ in self._pooling.values():
            _fail(answer, str(why))
        self._pooling.clear()


def _only_here(trace_headers: object, data_parallel_rank: int | None) -> None:
    """What requests of the field may say, and this version has not. NotSupportedError, RequestError."""
    if trace_headers:
        raise RequestError(
            "trace_headers: the server exports traces (--otlp-traces-endpoint), an engine in a program none; leave it out",
            "trace_headers",
        )
    if data_parallel_rank:
        raise RequestError("data_parallel_rank: requests are not pinned to an engine; leave it out", "data_parallel_rank")


def _with_text(prompt: Any, text: str | None) -> Any:
    if text is None:
        return prompt
    return {**prompt, "prompt": text} if isinstance(prompt, Mapping) else {"prompt_token_ids": prompt, "prompt": text}


def _fail(answer: asyncio.Future[Pooled], why: str) -> None:
    if not answer.done():  # else its reader went away in this moment
        answer.set_exception(EngineDeadError(why))


async def _abandon(engine: asyncio.Task[EngineProcess]) -> None:
    """End an engine that is starting or has started. One that failed to start has ended."""
    engine.cancel()
    with contextlib.suppress(asyncio.CancelledError, ThalwegError):
        await (await engine).stop()
