"""The requests of one client: prepared, opened, answered. `LLMEngine` and `AsyncLLM` drive it, in different ways.

It keeps the state of every open request, and knows no thread, event loop or transport.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Mapping, Sequence
from typing import Any

from thalweg.config import EngineConfig
from thalweg.engine.client.frontend import Frontend
from thalweg.engine.client.grammars import StructuredOutputs
from thalweg.engine.client.inputs import InputProcessor
from thalweg.engine.client.kv_events import KvEvents
from thalweg.engine.client.outputs import OutputProcessor
from thalweg.engine.client.pooling_outputs import PoolingOutputs
from thalweg.engine.client.prompt_reader import PromptReader
from thalweg.engine.client.submission import PoolingSubmission, Submission, with_adapter
from thalweg.engine.messages import EngineRequest, Outputs
from thalweg.errors import ConfigError, RequestError
from thalweg.lora import LoRARequest
from thalweg.options.kv_events import read_kv_events
from thalweg.options.kv_store import shares_store
from thalweg.outputs import PoolingOutput, PoolingRequestOutput, RequestOutput
from thalweg.refused import EXTERNAL, TRACES
from thalweg.text.tokenizer import Tokenizer

Output = RequestOutput | PoolingRequestOutput[PoolingOutput]


class ClientCore:
    """The requests of one client. Implements the supervisor's `OpenRequests`. Not thread-safe."""

    config: EngineConfig
    inputs: InputProcessor
    prompts: PromptReader
    structured: StructuredOutputs | None = None
    """The validator of grammars. None: no grammars."""

    def __init__(self, frontend: Frontend, seeds: random.Random) -> None:
        """seeds: the source of seeds for requests without one."""
        self.frontend, self._seeds = frontend, seeds
        self.outputs = OutputProcessor(frontend.tokenizer, frontend.args.stream_interval)
        self.pooled = PoolingOutputs()
        self.handles = itertools.count(1)
        events = read_kv_events(frontend.args)
        self.events = None if events is None else KvEvents(events, frontend.args.local_engines, frontend.args.first_engine)

    def connect(self, config: EngineConfig) -> None:
        """Prepare requests for an engine of this configuration. Called again for a replacement of the engine."""
        if not hasattr(self, "config"):
            self.structured = self.frontend.structured_outputs(config)
        self.config = config
        self.prompts = PromptReader(self.frontend, config.model.prompt_limit)
        self.inputs = InputProcessor(
            config,
            self.frontend.tokenizer,
            eos_ids=self.frontend.eos_ids,
            seed_source=self._seeds,
            structured=self.structured,
            media=self.frontend.media,
            marks=self.frontend.marks,
            shares_store=shares_store(self.frontend.args),
        )

    def get_tokenizer(self) -> Tokenizer:
        """ConfigError if the tokenizer was skipped."""
        if self.frontend.tokenizer is None:
            raise ConfigError("skip_tokenizer_init: there is no tokenizer")
        return self.frontend.tokenizer

    def prepare(
        self, request_id: str, prompt: Any, params: Any, *, pooling: bool, priority: int = 0, first_choice: int = 0,
        lora_request: LoRARequest | None = None, adapter: bytes = b"",
    ) -> Submission | PoolingSubmission:  # fmt: skip
        """A checked request. RequestError names the field. prompt: as `PromptReader` returns it. pooling: `params` must be
        PoolingParams, else SamplingParams. first_choice: as of `InputProcessor.process`. adapter: the digest of the adapter
        that `lora_request` names."""
        inputs, handles = self.inputs, self.handles
        result: Submission | PoolingSubmission
        if pooling:
            result = inputs.process_pooling(request_id, prompt, params, priority=priority, handles=handles)
        else:
            result = inputs.process(request_id, prompt, params, priority=priority, handles=handles, first_choice=first_choice)
        if lora_request is None:
            return result
        if self.events is not None:
            self.events.name_adapter(adapter, lora_request.lora_name)
        return with_adapter(result, lora_request, adapter)

    def open(self, submission: Submission | PoolingSubmission) -> list[EngineRequest]:
        """Expect outputs of a request from now on. Returns the requests for the engine."""
        now = time.monotonic()
        if isinstance(submission, PoolingSubmission):
            self.pooled.add(submission, now)
            return [submission.request]
        self.outputs.add(submission, now)
        return submission.requests

    def process(self, frame: Outputs) -> tuple[list[Output], list[int]]:
        """(outputs for the callers, handles that the engine must stop)."""
        if self.events is not None:
            self.events.publish(frame)
        processed = self.outputs.process(frame)
        return [*processed.outputs, *self.pooled.process(frame)], processed.abort

    def abort(self, request_id: str) -> tuple[list[int], Output | None]:
        """Close a request: (handles that the engine must stop, its last output). ([], None) if it is not open."""
        handles, last = self.outputs.abort(request_id)
        stopped = self.pooled.abort([request_id])
        return [*handles, *stopped], next(iter(stopped.values()), last)

    def fail(self, handle: int, why: str) -> str | None:
        """Close the request of a handle: its id. None if it is not open."""
        closed = self.outputs.fail(handle, why)
        return self.pooled.fail(handle) if closed is None else closed[0]

    def fail_all(self, why: str) -> None:
        """Close every request: the engine is gone."""
        self.outputs.fail_all(why)
        self.pooled.fail_all()

    def open_ids(self) -> list[str]:
        """Requests that have not finished, oldest first."""
        return [*self.outputs.open_ids(), *self.pooled.open_ids()]  # only one has any for a given engine

    def open_handles(self) -> list[int]:
        return [*self.outputs.open_handles(), *self.pooled.open_handles()]

    def resubmit(self, handles: Sequence[int]) -> list[EngineRequest]:
        return [*self.outputs.resubmit(handles), *self.pooled.resubmit(handles)]

    def close(self) -> None:
        """End the processes that read templates, media and grammars, and the publishers of events."""
        for part in (self.frontend.chat, self.frontend.media, self.structured, self.events):
            if part is not None:
                part.close()


def check_trace_headers(trace_headers: Mapping[str, str] | None) -> None:
    """RequestError if there are any."""
    if trace_headers:
        raise RequestError(TRACES, "trace_headers")


def check_arrival_time(arrival_time: float | None) -> None:
    """RequestError if there is one."""
    if arrival_time is not None:
        raise RequestError("arrival_time: requests arrive when they are added; omit it", "arrival_time")


def check_reset(reset_running_requests: bool, reset_connector: bool) -> None:
    """ConfigError for arguments of `reset_prefix_cache` that this version does not support."""
    if reset_running_requests:
        raise ConfigError("reset_running_requests: running requests keep their blocks; omit it")
    if reset_connector:
        raise ConfigError(f"reset_connector: {EXTERNAL}")


def with_text(prompt: Any, text: str | None) -> Any:
    """A prompt of ids, and its text if known."""
    if text is None:
        return prompt
    return {**prompt, "prompt": text} if isinstance(prompt, Mapping) else {"prompt_token_ids": prompt, "prompt": text}
