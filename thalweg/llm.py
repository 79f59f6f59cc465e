"""LLM: the engine offline, in this process. The control loop is the server's. Only the channel is missing."""

from __future__ import annotations

import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from tqdm import tqdm

from thalweg.config import EngineArgs, EngineConfig
from thalweg.engine.client.chat_turns import ChatTurns
from thalweg.engine.client.inputs import PoolingSubmission, Submission
from thalweg.engine.client.media import MEDIA
from thalweg.engine.control.core import EngineCore
from thalweg.engine.messages import Stats
from thalweg.engine.planning.arguments import engine_args as engine_args_of
from thalweg.engine.worker.worker import Worker
from thalweg.errors import ConfigError, NotSupportedError, RequestError
from thalweg.hal.device import Device
from thalweg.lora import LoRARequest
from thalweg.media.kinds.base import Medium
from thalweg.offline.beams import BeamMethods
from thalweg.offline.engine import LLMEngine
from thalweg.offline.metrics import Metric
from thalweg.offline.pooling import PoolingMethods
from thalweg.offline.prompts import Prompt, as_list, per_prompt
from thalweg.offline.sharing import Runs, in_turn
from thalweg.options.model import BUNDLED, BUNDLED_WORDS
from thalweg.outputs import RequestOutput
from thalweg.params import PoolingParams, RequestOutputKind, SamplingParams
from thalweg.refused import NoCode, NoNewWeights
from thalweg.template.chat import Chat
from thalweg.template.messages import FORMATS
from thalweg.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)


class LLM(PoolingMethods, BeamMethods, NoCode, NoNewWeights):
    """Loads a model and generates from it, batch by batch, in the calling thread.

    Several threads may share one: each call waits for its turn, and gets its own results. For requests of many threads or
    tasks in one batch use `AsyncLLM`.

    Keyword arguments are the fields of `EngineArgs`. Arguments of vLLM that are not among them are accepted where they ask for
    what happens anyway. chat_template: used by `chat` in place of the model's. tool_call_parser, reasoning_parser: what `chat`
    uses where it is told none. profiler_config: for `start_profile`.
    Raises ConfigError, CheckpointError, UnsupportedModelError or DeviceError, each naming the field or file.
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
        made = cls.__new__(cls)
        made._open(LLMEngine(engine_args))
        return made

    def _open(
        self, engine: LLMEngine, chat_template: str | None = None, parsers: tuple[str | None, str | None] = (None, None)
    ) -> None:
        self.llm_engine = engine
        self._template = None if chat_template is None else _read_template(chat_template, engine.frontend.chat)
        self._ids = itertools.count()
        self.runs = Runs(engine)
        self._parsers: tuple[str | None, str | None] = parsers

    @property
    def _core(self) -> EngineCore:
        return self.llm_engine.core

    @property
    def _worker(self) -> Worker:
        return self.llm_engine.worker

    @property
    def config(self) -> EngineConfig:
        """What the engine decided."""
        return self.llm_engine.config

    @property
    def device(self) -> Device:
        """The device of the model. UnavailableError as in `LLMEngine.worker`."""
        return self.llm_engine.worker.device

    @property
    def kernel_plan(self) -> list[str]:
        """Which kernel serves each op, and why not the others, a line each."""
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
        """What may be asked of the model."""
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
        use_tqdm: bool | Callable[..., Any] = True,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        priority: Sequence[int] | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Complete every prompt. Results come in prompt order. RequestError, naming the field, before anything runs.
        tokenization_kwargs: {"truncate_prompt_tokens": 100, "add_special_tokens": False}. lora_request: the adapter of all
        prompts, or of each; an engine made with enable_lora reads it when it is first named."""
        _no_media(mm_processor_kwargs)
        prepared = self._prepare(prompts, sampling_params, priority, tokenization_kwargs, lora_request)
        ids = [s.request_id for s in prepared]
        with self.runs.dropping(ids):
            self.llm_engine.submit(prepared)
            return self._finish(ids, use_tqdm)

    @in_turn
    def chat(
        self,
        messages: Sequence[Any],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        chat_template: str | None = None,
        chat_template_content_format: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
        tool_call_parser: str | None = None,
        reasoning_parser: str | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation (a list of messages) or several (a list of those) through the chat template.

        The template (the model's, or `chat_template`: text, a file, or the name of one of the model's) runs in a process with
        limits of time, memory and output. With tools a model's `tool_use` is chosen. Special tokens written inside messages
        are text. Outputs have `content`, `reasoning` and, with tools, `tool_calls` beside the whole `text`. tool_call_parser,
        reasoning_parser: names of turn formats. None: found out, as docs/tools-and-reasoning.md says."""
        _no_media(mm_processor_kwargs)
        turns = ChatTurns(
            self.llm_engine.frontend,
            self._choose_template(chat_template, chat_template_kwargs)[1],
            tools,
            tool_call_parser or self._parsers[0],
            reasoning_parser or self._parsers[1],
        )
        prompts = self.preprocess_chat(
            messages,
            chat_template=chat_template,
            chat_template_content_format=chat_template_content_format,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            chat_template_kwargs=chat_template_kwargs,
        )
        params = per_prompt("sampling_params", sampling_params, len(prompts), self.get_default_sampling_params)
        outputs = self.generate(
            prompts,
            [turns.marking(p, prompt) for p, prompt in zip(params, prompts, strict=True)],
            use_tqdm=use_tqdm,
            tokenization_kwargs=tokenization_kwargs,
            lora_request=lora_request,
        )
        for output, param in zip(outputs, params, strict=True):
            turns.read(output, param)
        return outputs

    @in_turn
    def preprocess_chat(
        self,
        messages: Sequence[Any],
        *,
        chat_template: str | None = None,
        chat_template_content_format: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[Prompt]:
        """The prompts `chat` would generate from, for `generate`: one per conversation."""
        chat, template, kwargs = self._choose_template(chat_template, chat_template_kwargs)
        conversations = [messages] if messages and isinstance(messages[0], Mapping) else list(messages)
        if chat_template_content_format not in FORMATS:
            said = f"chat_template_content_format must be one of {', '.join(FORMATS)}, not {chat_template_content_format!r:.80}"
            raise RequestError(said, "chat_template_content_format")
        if template is None and not chat.templates.named:
            raise RequestError("chat_template: the model has none; pass chat_template=, or use generate()", "chat_template")
        made: list[Prompt] = []
        for conversation in conversations:
            shown, items = self._read_media(conversation)
            media = self.llm_engine.frontend.media
            prompt = chat.prompt(
                shown,
                tools,
                template=template,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                content_format=FORMATS[chat_template_content_format],
                kwargs=kwargs,
                expand=media.expand(items) if media is not None and items else None,
            )
            made.append({**prompt, MEDIA: items} if items else prompt)
        return made

    def _choose_template(
        self, chat_template: str | None, kwargs: Mapping[str, Any] | None
    ) -> tuple[Chat, str | None, dict[str, Any]]:
        """(what renders; the template, by the argument, by a name in `kwargs`, or of the whole LLM; the other kwargs)."""
        self.llm_engine.client.inputs.check_generates()
        chat = self.llm_engine.frontend.chat
        if chat is None:
            raise ConfigError("skip_tokenizer_init: there is no tokenizer")
        given = None if chat_template is None else _read_template(chat_template, chat)
        template, rest = chat.templates.read_kwargs(given, kwargs)
        return chat, self._template if template is None else template, rest

    def _read_media(self, conversation: Sequence[Any]) -> tuple[Sequence[Any], list[Medium]]:
        """A conversation with its media read and taken out, where the model takes any."""
        media = self.llm_engine.frontend.media
        if media is None or not isinstance(conversation, list | tuple):
            return conversation, []
        shown, sources = media.apart(conversation)
        return shown, media.read(sources)

    @in_turn
    def enqueue(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | PoolingParams | Sequence[SamplingParams] | Sequence[PoolingParams] | None = None,
        *,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        priority: Sequence[int] | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
    ) -> list[str]:
        """Add requests without running them. Returns their ids. All are checked before any is added. use_tqdm: a bar is shown
        by `wait_for_completion`."""
        _no_media(mm_processor_kwargs)
        prepared = self._prepare(prompts, sampling_params, priority, tokenization_kwargs, lora_request)
        ids = [s.request_id for s in prepared]
        with self.runs.dropping(ids):
            self.llm_engine.submit(prepared)
            self.runs.remember(ids)
        return ids

    def _prepare(
        self, prompts: Any, sampling_params: Any, priority: Sequence[int] | None,
        tokenization_kwargs: Mapping[str, Any] | None, lora_request: Any = None,
    ) -> list[Submission | PoolingSubmission]:  # fmt: skip
        items = as_list(prompts)
        params = per_prompt("sampling_params", sampling_params, len(items), self.get_default_sampling_params)
        ranks = per_prompt("priority", priority, len(items), int)
        adapters = per_prompt("lora_request", lora_request, len(items), lambda: None)
        return [
            self.llm_engine.prepare(
                str(next(self._ids)), p, _final_only(s), priority=r, tokenization_kwargs=tokenization_kwargs, lora_request=a
            )
            for p, s, r, a in zip(items, params, ranks, adapters, strict=True)
        ]

    @in_turn
    def wait_for_completion(
        self, output_type: type | tuple[type, ...] | None = None, *, use_tqdm: bool | Callable[..., Any] = True
    ) -> list[Any]:
        """Run until everything that the calling thread has enqueued is finished. Results come in the order enqueued. A thread
        that has enqueued nothing waits for what others have. output_type: what all of them must be. Interrupted (Ctrl-C), the
        engine drops what is left and stays usable."""
        ids = self.runs.waiting()
        with self.runs.dropping(ids):
            outputs = self._finish(ids, use_tqdm)
        wrong = next((o for o in outputs if output_type is not None and not isinstance(o, output_type)), None)
        if wrong is not None:
            raise RequestError(f"output_type: request {wrong.request_id} gave {type(wrong).__name__}", "output_type")
        return outputs

    def _finish(self, order: Sequence[str], use_tqdm: bool | Callable[..., Any]) -> list[Any]:
        bar = (use_tqdm if callable(use_tqdm) else tqdm)(total=len(order), disable=not use_tqdm, desc="requests", unit="req")
        made, start = 0, time.monotonic()

        def seen(out: Any) -> None:
            nonlocal made
            if isinstance(out, RequestOutput):
                made += sum(len(c.token_ids) for c in out.outputs)
                bar.set_postfix_str(f"{made / (time.monotonic() - start):.1f} tok/s", refresh=False)
            bar.update()

        with contextlib.closing(bar):
            done = self.runs.finish(order, seen)
        return [done[i] for i in order]

    def stats(self) -> Stats:
        """What the engine holds and has done so far."""
        return self.llm_engine.stats()

    def get_metrics(self) -> list[Metric]:
        """Counters and gauges since the engine started, under the names of the server's /metrics."""
        return self.llm_engine.get_metrics()

    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """Forget every cached prefix. Running requests go on. Others do not find what they have computed."""
        return self.llm_engine.reset_prefix_cache(reset_running_requests, reset_connector)

    @in_turn
    def reset_mm_cache(self) -> None:
        """Read every image anew from now on."""
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
        """Give the device's memory back. See `LLMEngine.sleep`."""
        self.llm_engine.sleep(level, mode)

    @in_turn
    def wake_up(self, tags: list[str] | None = None) -> None:
        """Load the model again."""
        self.llm_engine.wake_up(tags)

    def is_sleeping(self) -> bool:
        return self.llm_engine.is_sleeping()

    @in_turn
    def shutdown(self) -> None:
        """Give the device back. The object is not used again."""
        self.llm_engine.shutdown()


def _final_only(params: SamplingParams | PoolingParams) -> SamplingParams | PoolingParams:
    if isinstance(params, PoolingParams):
        return params
    if not isinstance(params, SamplingParams):
        raise RequestError(f"sampling_params must be SamplingParams, not {type(params).__name__}", "sampling_params")
    return msgspec.structs.replace(params, output_kind=RequestOutputKind.FINAL_ONLY)


def _no_media(mm_processor_kwargs: Mapping[str, Any] | None) -> None:
    if mm_processor_kwargs:
        raise NotSupportedError("mm_processor_kwargs: images are processed as the model's files say; leave it out")


def _read_template(template: str, chat: Chat | None) -> str:
    """A template given as text, as a file, or by its name among the model's. RequestError if it is none of them."""
    named = {} if chat is None else chat.templates.named
    if template in named or "{" in template or "\n" in template:
        return template
    try:
        return Path(template).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        names = f" (the model's: {', '.join(sorted(named))})" if named else ""
        said = f"chat_template: {template!r:.80} is neither a template, nor a readable file, nor a name{names}: {e}"
        raise RequestError(said, "chat_template") from None
