"""LLMEngine: one engine in the calling thread, a step at a time. `LLM` is a loop around it."""

from __future__ import annotations

import gc
import random
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from thalweg.config import EngineArgs, EngineConfig
from thalweg.engine.client.adapters import DefaultAdapters
from thalweg.engine.client.core import ClientCore, Output, check_arrival_time, check_reset, check_trace_headers, with_text
from thalweg.engine.client.frontend import Frontend, ResolvedModel, load_frontend, locate
from thalweg.engine.client.submission import PoolingSubmission, Submission
from thalweg.engine.control.core import EngineCore
from thalweg.engine.control.executor import Executor
from thalweg.engine.control.profiles import Profiles
from thalweg.engine.control.store.connect import connect, key_hash
from thalweg.engine.ipc.port import keep_port, release_port
from thalweg.engine.messages import Stats
from thalweg.engine.worker.stages.open import start_ahead
from thalweg.engine.worker.worker import Worker
from thalweg.errors import ConfigError, RequestError, UnavailableError
from thalweg.executors import load_executor
from thalweg.grammar.grammars import Grammars
from thalweg.host.collector import pause_gc
from thalweg.lora import LoRARequest
from thalweg.offline.adapters import OfflineAdapters
from thalweg.offline.metrics import Metric, snapshot
from thalweg.offline.sharing import SHUT, SLEEPS, atomic, with_lock
from thalweg.options.kv_events import read_kv_events
from thalweg.options.observation import read_profiler_config
from thalweg.params import PoolingParams, SamplingParams
from thalweg.refused import NoVllmConfig, NoWorkerCalls
from thalweg.text.tokenizer import Tokenizer

NO_SLEEP = "enable_sleep_mode: sleeping needs an engine made with enable_sleep_mode=True"


class LLMEngine(NoWorkerCalls, NoVllmConfig):
    """Requests enter with `add_request`. Each `step` returns outputs.

    Calls are atomic: several threads may call, and Ctrl-C comes between steps. But the thread that calls `step` gets the
    outputs of every thread's requests. `LLM` gives each thread its own.

    Raises ConfigError, CheckpointError, UnsupportedModelError or DeviceError when made, each naming the field or file.
    """

    def __init__(self, args: EngineArgs) -> None:
        read_profiler_config(args)  # errors before anything is loaded
        if args.local_engines > 1:
            raise ConfigError("data_parallel_size: this engine runs in the calling thread; use AsyncLLM or thalweg serve")
        self.lock = threading.RLock()
        with pause_gc():
            located = locate(args)
            with start_ahead(located.args):
                self._initialize(located)

    def _initialize(self, located: ResolvedModel) -> None:
        args = located.given
        self.client = ClientCore(load_frontend(located), random.Random(args.seed))
        self._closed: list[Output] = []
        self.adapters, self._default_adapters = OfflineAdapters(args), DefaultAdapters(args)
        self._asleep = self._shut = False
        self._start()

    def _start(self) -> None:
        with pause_gc():
            args = self.frontend.args
            several = args.nnodes > 1 and not args.node_rank
            try:
                if several:
                    keep_port(args.master_addr, args.master_port)
                self.executor: Executor = load_executor(args)(args)
            except BaseException:
                if several:
                    release_port()
                raise
        self._profiles = None if read_profiler_config(args) is None else Profiles(self.executor)
        self.client.connect(self.executor.config)
        structured = self.client.structured
        grammars = None if structured is None else Grammars(lambda: structured.judge.vocabulary)
        make: type[EngineCore] = getattr(self.executor, "core_type", EngineCore)
        self.core = make(
            self.executor, grammars=grammars, hash_fn=key_hash(args), store=connect(args, self.executor),
            kv_events=read_kv_events(args) is not None,
        )  # fmt: skip
        self.adapters.attach(self.core)

    @classmethod
    def from_engine_args(
        cls, engine_args: EngineArgs, usage_context: Any = None, stat_loggers: Any = None, enable_multiprocessing: bool = False
    ) -> LLMEngine:
        """usage_context: nothing is reported to anyone. For an engine in a separate process use AsyncLLM."""
        if stat_loggers:
            raise ConfigError("stat_loggers: an engine in the calling thread logs no statistics; call get_metrics()")
        if enable_multiprocessing:
            raise ConfigError("enable_multiprocessing: this engine runs in the calling thread; use AsyncLLM")
        return cls(engine_args)

    # ------------------------------------------------------------ what it is

    @property
    def worker(self) -> Worker:
        """The worker in this process. UnavailableError while the engine sleeps, and where its executor has none here."""
        if not isinstance(worker := getattr(getattr(self, "executor", None), "worker", None), Worker):
            raise UnavailableError("the engine sleeps, or its steps run in another process: there is no device here")
        return worker

    @property
    def frontend(self) -> Frontend:
        return self.client.frontend

    @property
    def config(self) -> EngineConfig:
        return self.client.config

    @property
    def model_config(self) -> Any:
        return self.config.model

    def get_tokenizer(self) -> Tokenizer:
        """ConfigError if the tokenizer was skipped."""
        return self.client.get_tokenizer()

    @property
    def tokenizer(self) -> Tokenizer | None:
        return self.frontend.tokenizer

    def get_supported_tasks(self) -> tuple[str, ...]:
        return self.config.model.tasks

    # ------------------------------------------------------------ requests

    @with_lock
    def prepare(
        self,
        request_id: str,
        prompt: Any,
        params: SamplingParams | PoolingParams,
        *,
        priority: int = 0,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        lora_request: LoRARequest | None = None,
    ) -> Submission | PoolingSubmission:
        """A checked request, for `submit`. RequestError names the field. Raises CheckpointError or UnsupportedModelError if the
        adapter that it names cannot be served."""
        prompt = self.client.prompts.read(prompt, tokenization_kwargs)
        lora_request = self._default_adapters.choose(prompt, lora_request)
        adapter = self.adapters.find_digest(lora_request)
        return self.client.prepare(
            request_id, prompt, params, pooling=isinstance(params, PoolingParams), priority=priority,
            lora_request=lora_request, adapter=adapter,
        )  # fmt: skip

    @atomic
    def submit(self, submissions: Iterable[Submission | PoolingSubmission]) -> None:
        """Run these from the next step on. UnavailableError while it sleeps, and after `shutdown`."""
        if self._shut or self._asleep:
            raise UnavailableError(SHUT if self._shut else SLEEPS)
        for submission in submissions:
            self.core.add(self.client.open(submission))
        self.adapters.trim()

    @with_lock
    def add_request(
        self,
        request_id: str,
        prompt: Any,
        params: SamplingParams | PoolingParams,
        arrival_time: float | None = None,
        lora_request: LoRARequest | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        trace_headers: Mapping[str, str] | None = None,
        priority: int = 0,
        prompt_text: str | None = None,
    ) -> str:
        """One request, by an id that no open one has: the id. RequestError names the field."""
        check_trace_headers(trace_headers)
        check_arrival_time(arrival_time)
        if not isinstance(request_id, str) or request_id in self.open_ids:
            raise RequestError(f"request_id: {request_id!r:.80} must be text that no open request has", "request_id")
        if not isinstance(prompt, str):
            prompt = with_text(prompt, prompt_text)
        messages = self.prepare(
            request_id, prompt, params, priority=priority, tokenization_kwargs=tokenization_kwargs, lora_request=lora_request
        )
        self.submit([messages])
        return request_id

    @property
    def open_ids(self) -> list[str]:
        """Requests that have not finished."""
        return self.client.open_ids()

    @with_lock
    def abort_request(self, request_ids: str | Iterable[str]) -> None:
        """End requests. The next `step` returns their last outputs, with finish_reason "abort". Unknown ids are fine."""
        for one in [request_ids] if isinstance(request_ids, str) else list(request_ids):
            last = self.drop(one)
            if last is not None:
                self._closed.append(last)

    @atomic
    def drop(self, request_id: str) -> Output | None:
        """End a request: its last output. None if it is not open."""
        handles, last = self.client.abort(request_id)
        if hasattr(self, "core"):
            self.core.abort(handles)
        return last

    @atomic
    def step(self) -> list[Output]:
        """Run one step. Returns outputs by each request's output_kind, and finished pooling requests."""
        closed, self._closed = self._closed, []
        news = None if self._asleep else self.core.step()
        if news is None:
            return closed
        outputs, stopped = self.client.process(news)
        if stopped:
            self.core.abort(stopped)
        if self._profiles is not None:
            self._profiles.advance()
        return [*closed, *outputs]

    def has_unfinished_requests(self) -> bool:
        return bool(self._closed or self.open_ids)

    def get_num_unfinished_requests(self) -> int:
        return len(self.open_ids)

    # ------------------------------------------------------------ the engine itself

    @with_lock
    def stats(self) -> Stats:
        return self.core.stats()

    @with_lock
    def get_metrics(self) -> list[Metric]:
        """Counters and gauges since the engine started, under the names of the server's /metrics."""
        return snapshot(self.frontend.names[0], self.core.stats())

    @with_lock
    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """Forget every cached prefix. Running requests go on. Later ones do not find the blocks those have computed."""
        check_reset(reset_running_requests, reset_connector)
        return self.core.reset_prefix_cache()

    def reset_mm_cache(self) -> None:
        """Forget processed images: later requests read them again."""
        if self.frontend.media:
            self.frontend.media.forget()

    def start_profile(self, profile_prefix: str | None = None) -> None:
        """Record operations until `stop_profile`, by torch's profiler. RequestError without a profiler_config, while one runs,
        and on a device without torch."""
        self._configured_profiles().start(profile_prefix or "thalweg")

    def stop_profile(self) -> None:
        """Write the trace."""
        self._configured_profiles().stop()

    def _configured_profiles(self) -> Profiles:
        if not hasattr(self, "executor"):
            raise UnavailableError(SLEEPS)
        if self._profiles is None:
            raise RequestError('profiler_config: give it to LLM(...): {"profiler": "torch", "torch_profiler_dir": FOLDER}')
        return self._profiles

    @with_lock
    def add_lora(self, lora_request: LoRARequest) -> bool:
        """Read an adapter before the first request names it. Raises RequestError, CheckpointError or UnsupportedModelError."""
        self.adapters.trim(keep=self.adapters.find_digest(lora_request))
        return True

    @with_lock
    def remove_lora(self, lora_id: int) -> bool:
        """Forget the adapter of this lora_int_id. False: there is none. RequestError while requests use it."""
        return self.adapters.remove(lora_id)

    @with_lock
    def list_loras(self) -> set[int]:
        """lora_int_id of each adapter that was named."""
        return self.adapters.numbers()

    @with_lock
    def pin_lora(self, lora_id: int) -> bool:
        """Keep the adapter of this lora_int_id in host memory while no request uses it. RequestError if there is none."""
        self.adapters.pin(lora_id)
        return True

    @with_lock
    def sleep(self, level: int = 1, mode: str = "abort") -> None:
        """Free the device's memory, weights and cache. Open requests are aborted ("abort"), finished first ("wait"), or
        resumed after `wake_up` ("keep"). Both levels read the weights from their files again."""
        if not self.frontend.args.enable_sleep_mode:
            raise ConfigError(NO_SLEEP)
        if level not in (0, 1, 2):
            raise ConfigError(f"level: {level!r} is not one of 0 (only pause), 1, 2")
        if mode not in ("abort", "wait", "keep"):
            raise ConfigError(f"mode: {mode!r} is not one of abort, wait, keep")
        if self._asleep:
            return
        if mode == "abort":
            self.abort_request(self.open_ids)
        while mode == "wait" and self.open_ids:
            self._closed = self.step()
        self._asleep = True
        if level == 0:
            return
        self.core.close()
        self.executor.close()
        self._profiles = None
        self.adapters.detach()
        del self.executor, self.core
        gc.collect()

    @with_lock
    def wake_up(self, tags: list[str] | None = None) -> None:
        """Undo `sleep`, with an empty prefix cache. Kept requests go on."""
        if tags:
            raise ConfigError("tags: weights and cache come back together; omit it")
        if not self._asleep:
            return
        if not hasattr(self, "core"):
            self._start()
            self.core.add(self.client.resubmit(self.client.open_handles()))
        self._asleep = False

    def enter(self) -> None:
        """Let the calling thread drive the device from now on, instead of the previous one."""
        if hasattr(self, "executor"):
            self.executor.enter()

    def is_sleeping(self) -> bool:
        return self._asleep

    @with_lock
    def shutdown(self) -> None:
        """Give the device back. The object is not used again: requests get UnavailableError."""
        self._shut = True
        self.client.close()
        if hasattr(self, "executor"):
            self.core.close()
            self.executor.close()
        if self.frontend.args.nnodes > 1:
            release_port()
