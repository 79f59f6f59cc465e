"""LLM: the engine offline, in this process. The control loop is the server's, without the channel."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from thalweg.config import EngineArgs, EngineConfig
from thalweg.engine.client.submission import PoolingSubmission, Submission
from thalweg.engine.control.core import EngineCore
from thalweg.engine.messages import Stats
from thalweg.engine.planning.arguments import engine_args as engine_args_of
from thalweg.engine.worker.worker import Worker
from thalweg.errors import RequestError
from thalweg.hal.device import Device
from thalweg.lora import LoRARequest
from thalweg.offline.batches import UseTqdm
from thalweg.offline.beams import BeamMethods
from thalweg.offline.chats import ChatMethods, read_template, refuse_mm_processor_kwargs
from thalweg.offline.engine import LLMEngine
from thalweg.offline.metrics import Metric
from thalweg.offline.pooling import PoolingMethods
from thalweg.offline.prompts import Prompt, as_list, per_prompt
from thalweg.offline.sharing import Runs, in_turn
from thalweg.offline.speech import SpeechMethods
from thalweg.options.model import BUNDLED, BUNDLED_WORDS
from thalweg.outputs import RequestOutput
from thalweg.params import PoolingParams, SamplingParams
from thalweg.refused import NoWeightUpdates, NoWorkerCalls
from thalweg.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)


class LLM(ChatMethods, PoolingMethods, SpeechMethods, BeamMethods, NoWorkerCalls, NoWeightUpdates):
    """Loads a model and generates from it, batch by batch, in the calling thread.

    Several threads may share one: each call waits for its turn, and gets its own results. For requests of many threads or
    tasks in one batch use `AsyncLLM`.

    Keyword arguments are the fields of `EngineArgs`. Other arguments of vLLM are accepted where they request the behaviour
    there is anyway. chat_template: replaces the model's template in `chat`. tool_call_parser, reasoning_parser: defaults of
    `chat`. profiler_config: for `start_profile`. Raises ConfigError, CheckpointError, UnsupportedModelError or DeviceError,
    each naming the field or file.
    """

    def __init__(
        self,
        model: str | Path = BUNDLED,
        *,
        chat_template: str | None = None,
        tool_call_parser: str | None = None,
        reasoning_parser: str | None = None,
        **engine_args: Any,
    ) -> None:
        if model == BUNDLED:
            logger.warning(BUNDLED_WORDS.format(how="LLM(MODEL), a directory or a hub id,"))
        engine = LLMEngine(engine_args_of({"model": model, **engine_args}))
        self._open(engine, chat_template, (tool_call_parser, reasoning_parser))

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> LLM:
        result = cls.__new__(cls)
        result._open(LLMEngine(engine_args))
        return result

    def _open(
        self, engine: LLMEngine, chat_template: str | None = None, parsers: tuple[str | None, str | None] = (None, None)
    ) -> None:
        self.llm_engine = engine
        self._template = None if chat_template is None else read_template(chat_template, engine.frontend.chat)
        self._ids = itertools.count()
        self.runs = Runs(engine)
        self._parsers = parsers
        second = engine.frontend.talker_args()
        self._talker = None if second is None else LLM.from_engine_args(second)

    @property
    def _core(self) -> EngineCore:
        return self.llm_engine.core

    @property
    def _worker(self) -> Worker:
        return self.llm_engine.worker

    @property
    def config(self) -> EngineConfig:
        """The configuration that the engine runs with."""
        return self.llm_engine.config

    @property
    def device(self) -> Device:
        """The device of the model. UnavailableError as in `LLMEngine.worker`."""
        return self.llm_engine.worker.device

    @property
    def kernel_plan(self) -> list[str]:
        """The kernel of each op, and the reasons against the others, a line each."""
        return self.llm_engine.executor.plan

    @property
    def chat_template(self) -> str | None:
        """The model's own, as text."""
        return self.llm_engine.frontend.chat.source if self.llm_engine.frontend.chat else None

    def get_tokenizer(self) -> Tokenizer:
        """ConfigError if the tokenizer was skipped."""
        return self.llm_engine.get_tokenizer()

    def get_world_size(self, include_dp: bool = True) -> int:
        """Devices that share the model. include_dp: there are no replicas to count."""
        return self.llm_engine.frontend.args.tensor_parallel_size

    @property
    def supported_tasks(self) -> tuple[str, ...]:
        """Tasks that the model supports."""
        return self.llm_engine.get_supported_tasks()

    def get_default_sampling_params(self) -> SamplingParams:
        """The model's own defaults (generation config) over the general ones."""
        return self.llm_engine.frontend.sampling()

    @in_turn
    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: UseTqdm = True,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        priority: Sequence[int] | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Complete every prompt. Results come in prompt order. RequestError, naming the field, before anything runs.
        tokenization_kwargs: {"truncate_prompt_tokens": 100, "add_special_tokens": False}. lora_request: the adapter of all
        prompts, or of each; an engine made with enable_lora reads it when it is first named."""
        refuse_mm_processor_kwargs(mm_processor_kwargs)
        return self._run(self._prepare_all(prompts, sampling_params, priority, tokenization_kwargs, lora_request), use_tqdm)

    @in_turn
    def enqueue(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | PoolingParams | Sequence[SamplingParams] | Sequence[PoolingParams] | None = None,
        *,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        priority: Sequence[int] | None = None,
        use_tqdm: UseTqdm = True,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
    ) -> list[str]:
        """Add requests without running them. Returns their ids. All are checked before any is added. use_tqdm: a bar is shown
        by `wait_for_completion`."""
        refuse_mm_processor_kwargs(mm_processor_kwargs)
        prepared = self._prepare_all(prompts, sampling_params, priority, tokenization_kwargs, lora_request)
        ids = [s.request_id for s in prepared]
        with self.runs.dropping(ids):
            self.llm_engine.submit(prepared)
            self.runs.remember(ids)
        return ids

    def _prepare_all(
        self, prompts: Any, sampling_params: Any, priority: Any, tokenization_kwargs: Any, lora_request: Any
    ) -> list[Submission | PoolingSubmission]:
        items = as_list(prompts)
        params = per_prompt("sampling_params", sampling_params, len(items), self.get_default_sampling_params)
        return self._prepare(
            items, params, priority=priority, tokenization_kwargs=tokenization_kwargs, lora_request=lora_request
        )

    @in_turn
    def wait_for_completion(self, output_type: type | tuple[type, ...] | None = None, *, use_tqdm: UseTqdm = True) -> list[Any]:
        """Run until every request enqueued by the calling thread is finished. Results come in the order enqueued. A thread
        without requests waits for those of others. output_type: the required type of all results. Interrupted (Ctrl-C), the
        engine drops the open requests and stays usable."""
        ids = self.runs.waiting()
        with self.runs.dropping(ids):
            outputs = self._finish(ids, use_tqdm)
        wrong = next((o for o in outputs if output_type is not None and not isinstance(o, output_type)), None)
        if wrong is not None:
            raise RequestError(f"output_type: request {wrong.request_id} gave {type(wrong).__name__}", "output_type")
        return outputs

    def stats(self) -> Stats:
        """A snapshot of the engine's state and counters."""
        return self.llm_engine.stats()

    def get_metrics(self) -> list[Metric]:
        """Counters and gauges since the engine started, under the names of the server's /metrics."""
        return self.llm_engine.get_metrics()

    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """Forget every cached prefix. Running requests go on. Later ones do not find the blocks those have computed."""
        return self.llm_engine.reset_prefix_cache(reset_running_requests, reset_connector)

    @in_turn
    def reset_mm_cache(self) -> None:
        """Forget processed images: later requests read them again."""
        self.llm_engine.reset_mm_cache()

    @in_turn
    def start_profile(self, profile_prefix: str | None = None) -> None:
        """Record operations, until `stop_profile` writes them to the folder of profiler_config."""
        self.llm_engine.start_profile(profile_prefix)

    @in_turn
    def stop_profile(self) -> None:
        self.llm_engine.stop_profile()

    @in_turn
    def sleep(self, level: int = 1, mode: str = "abort") -> None:
        """Free the device's memory. See `LLMEngine.sleep`."""
        self.llm_engine.sleep(level, mode)

    @in_turn
    def wake_up(self, tags: list[str] | None = None) -> None:
        """Load the model again."""
        self.llm_engine.wake_up(tags)

    def is_sleeping(self) -> bool:
        return self.llm_engine.is_sleeping()

    @in_turn
    def shutdown(self) -> None:
        """Release the device. The object is not used again."""
        if self._talker is not None:
            self._talker.shutdown()
        self.llm_engine.shutdown()
