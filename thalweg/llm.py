"""LLM: the engine offline, in this process. The control loop is the server's. Only the channel is missing."""

from __future__ import annotations

import contextlib
import gc
import itertools
import logging
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from tqdm import tqdm

from thalweg.config import BUNDLED, BUNDLED_WORDS, EngineArgs, EngineConfig
from thalweg.engine.client.chat_turns import ChatTurns
from thalweg.engine.client.frontend import load_frontend, locate
from thalweg.engine.client.inputs import InputProcessor
from thalweg.engine.client.outputs import OutputProcessor
from thalweg.engine.client.pairs import matched, pair_prompt, score_text, shortened, tokenization
from thalweg.engine.client.pooled import PoolingOutputs, compared
from thalweg.engine.control.core import EngineCore
from thalweg.engine.messages import Stats
from thalweg.engine.worker.build import Worker, build
from thalweg.errors import ConfigError, RequestError, UnavailableError
from thalweg.grammar.grammars import Grammars
from thalweg.hal.device import Device
from thalweg.host import envs
from thalweg.outputs import (
    ClassificationOutput,
    ClassificationRequestOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    PoolingOutput,
    PoolingRequestOutput,
    RequestOutput,
    ScoringOutput,
    ScoringRequestOutput,
)
from thalweg.params import PoolingParams, RequestOutputKind, SamplingParams
from thalweg.text.cut import asked as cuts
from thalweg.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

Prompt = str | Mapping[str, Any] | list[int]
"""Text, {"prompt": text}, {"prompt_token_ids": ids}, or ids. Mappings may add "cache_salt"."""


class LLM:
    """Loads a model and generates from it, batch by batch, in the calling thread.

    Keyword arguments are the fields of `EngineArgs`. Raises ConfigError, CheckpointError, UnsupportedModelError or
    DeviceError, each naming the field or file. Not thread-safe: share one through AsyncLLM instead.
    """

    def __init__(self, model: str = BUNDLED, **engine_args: Any) -> None:
        if model == BUNDLED:
            logger.warning(BUNDLED_WORDS.format(how="LLM(MODEL), a directory or a hub id,"))
        self._open(_engine_args(model, engine_args))

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> LLM:
        made = cls.__new__(cls)
        made._open(engine_args)
        return made

    def _open(self, args: EngineArgs) -> None:
        with _uncollected():
            self._frontend = load_frontend(locate(args))
            worker = build(self._frontend.args)
        self._structured = structured = self._frontend.structured(worker.config)
        self._engine: tuple[Worker, EngineCore] | None = self._with_core(worker)
        self._inputs = InputProcessor(
            worker.config, self._frontend.tokenizer, eos_ids=self._frontend.eos_ids, seed_source=random.Random(args.seed),
            structured=structured,
        )  # fmt: skip
        self._outputs = OutputProcessor(self._frontend.tokenizer, args.stream_interval)
        self._pooled = PoolingOutputs()
        self._handles = itertools.count(1)
        self._ids = itertools.count()
        self._waiting: list[str] = []

    def _with_core(self, worker: Worker) -> tuple[Worker, EngineCore]:
        structured = self._structured
        grammars = None if structured is None else Grammars(lambda: structured.judge.vocabulary)
        return worker, EngineCore(worker.config, worker.launch, grammars=grammars)

    @property
    def _worker(self) -> Worker:
        return self._awake()[0]

    @property
    def _core(self) -> EngineCore:
        return self._awake()[1]

    def _awake(self) -> tuple[Worker, EngineCore]:
        if self._engine is None:
            raise UnavailableError("the engine sleeps: call wake_up() first")
        return self._engine

    @property
    def config(self) -> EngineConfig:
        """What the engine decided."""
        return self._worker.config

    @property
    def device(self) -> Device:
        """What the model runs on."""
        return self._worker.device

    @property
    def kernel_plan(self) -> list[str]:
        """Which kernel serves each op, and why not the others, a line each."""
        return self._worker.plan

    @property
    def chat_template(self) -> str | None:
        """The model's own, as text."""
        return self._frontend.chat.source if self._frontend.chat else None

    def get_tokenizer(self) -> Tokenizer:
        """ConfigError if the tokenizer was skipped."""
        if self._frontend.tokenizer is None:
            raise ConfigError("skip_tokenizer_init: there is no tokenizer")
        return self._frontend.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """The model's own defaults (generation config) over the general ones."""
        return self._frontend.sampling()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Complete every prompt. Results come in prompt order. RequestError, naming the field, before anything runs."""
        self.enqueue(prompts, sampling_params, priority=priority)
        return self.wait_for_completion(use_tqdm=use_tqdm)

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[EmbeddingRequestOutput]:
        """The vector of every prompt, in prompt order, from a model that gives those. RequestError, naming the field, before
        anything runs. A prompt longer than the model takes is refused, unless it is to be cut: tokenization_kwargs
        {"truncate_prompt_tokens": -1}."""
        outs = self._pool(prompts, pooling_params, "embed", tokenization_kwargs, use_tqdm)
        return [EmbeddingRequestOutput.made(o, EmbeddingOutput.from_base(o.outputs)) for o in outs]

    def classify(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[ClassificationRequestOutput]:
        """The probability of every class, for every prompt, from a model with a head for that. Otherwise as `embed`."""
        outs = self._pool(prompts, pooling_params, "classify", tokenization_kwargs, use_tqdm)
        return [ClassificationRequestOutput.made(o, ClassificationOutput.from_base(o.outputs)) for o in outs]

    def encode(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        pooling_task: str | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """What a pooling model gives of every prompt, as an array: a vector or class numbers, by pooling_task (None: what the
        model does). Otherwise as `embed`."""
        return self._pool(prompts, pooling_params, pooling_task, tokenization_kwargs, use_tqdm)

    def score(
        self,
        data_1: Any,
        data_2: Any,
        /,
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        pooling_params: PoolingParams | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[ScoringRequestOutput]:
        """How well texts go together: one with one, one with each of many, or each with its own. A cross-encoder reads both
        texts at once; of a model that gives vectors, it is the cosine of their angle. Otherwise as `embed`."""
        pooling = self._inputs.check_pools("score")
        sides = [_texts(data, name) for data, name in ((data_1, "data_1"), (data_2, "data_2"))]
        first, second = sides
        which = matched(len(first), len(second), ("data_1", "data_2"))
        if pooling.task == "embed":
            vectors = self._pool([*first, *second], pooling_params, "score", tokenization_kwargs, use_tqdm)
            return [compared(vectors[i], vectors[len(first) + j]) for i, j in which]
        keep, side, special = tokenization(tokenization_kwargs)
        if not special:
            raise RequestError("tokenization_kwargs: add_special_tokens: pairs need what is around them", "tokenization_kwargs")
        tokenizer = self.get_tokenizer()
        cut = cuts(keep, side, self.config.model.max_len, tokenizer.truncation_side)
        pairs = [pair_prompt(tokenizer, first[i], second[j], cut, pooling.types) for i, j in which]
        outs = self._pool(pairs, pooling_params, "score", None, use_tqdm)
        return [ScoringRequestOutput.made(o, ScoringOutput.from_base(o.outputs)) for o in outs]

    def _pool(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling_params: PoolingParams | Sequence[PoolingParams] | None,
        task: str | None,
        tokenization_kwargs: Mapping[str, Any] | None,
        use_tqdm: bool | Callable[..., Any],
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        self._inputs.check_pools(task)
        items = _as_list(prompts)
        params = _per_prompt("pooling_params", pooling_params, len(items), PoolingParams)
        keep, side, special = tokenization(tokenization_kwargs)
        tokenizer = self._frontend.tokenizer
        cut = cuts(keep, side, self.config.model.max_len, tokenizer.truncation_side if tokenizer else "right")
        submissions = [
            self._inputs.process_pooling(str(next(self._ids)), shortened(tokenizer, p, cut, special), s, handles=self._handles)
            for p, s in zip(items, params, strict=True)
        ]
        now = time.monotonic()
        for s in submissions:
            self._pooled.add(s, now)
        self._core.add([s.request for s in submissions])
        bar = (use_tqdm if callable(use_tqdm) else tqdm)(total=len(items), disable=not use_tqdm, desc="requests", unit="req")
        done: dict[str, PoolingRequestOutput[PoolingOutput]] = {}
        try:
            with contextlib.closing(bar):
                while len(done) < len(items):
                    news = self._core.step()
                    for out in self._pooled.process(news) if news is not None else ():
                        done[out.request_id] = out
                        bar.update()
        finally:
            self._core.abort(list(self._pooled.abort(s.request_id for s in submissions)))
        return [done[s.request_id] for s in submissions]

    def chat(
        self,
        messages: Sequence[Any],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        tool_call_parser: str | None = None,
        reasoning_parser: str | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation (a list of messages) or several (a list of those) through the chat template.

        The template (the model's, or `chat_template`: text or a file) runs in a process with limits of time, memory and
        output. Special tokens written inside messages are text. Outputs have `content`, `reasoning` and, with tools,
        `tool_calls` beside the whole `text`. tool_call_parser, reasoning_parser: names of turn formats. None: found out,
        as docs/tools-and-reasoning.md says."""
        turns = ChatTurns(
            self._frontend, _source(chat_template) if chat_template else None, tools, tool_call_parser, reasoning_parser
        )
        prompts = self.preprocess_chat(
            messages,
            chat_template=chat_template,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            chat_template_kwargs=chat_template_kwargs,
        )
        params = _per_prompt("sampling_params", sampling_params, len(prompts), self.get_default_sampling_params)
        outputs = self.generate(prompts, [turns.marking(p) for p in params], use_tqdm=use_tqdm)
        for output, param in zip(outputs, params, strict=True):
            turns.read(output, param)
        return outputs

    def preprocess_chat(
        self,
        messages: Sequence[Any],
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[Prompt]:
        """The prompts `chat` would generate from, for `generate`: one per conversation."""
        self._inputs.check_generates()
        conversations = [messages] if messages and isinstance(messages[0], Mapping) else list(messages)
        chat = self._frontend.chat
        if chat is None:
            raise ConfigError("skip_tokenizer_init: there is no tokenizer")
        if chat.source is None and chat_template is None:
            raise RequestError("chat_template: the model has none; pass chat_template=, or use generate()", "chat_template")
        template = None if chat_template is None else _source(chat_template)
        return [
            chat.prompt(
                conversation,
                tools,
                template=template,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                kwargs=chat_template_kwargs,
            )
            for conversation in conversations
        ]

    def enqueue(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: Sequence[int] | None = None,
    ) -> list[str]:
        """Add requests without running them. Returns their ids. All are checked before any is added."""
        items = _as_list(prompts)
        params = _per_prompt("sampling_params", sampling_params, len(items), self.get_default_sampling_params)
        ranks = _per_prompt("priority", priority, len(items), int)
        submissions = [
            self._inputs.process(str(next(self._ids)), p, _final_only(s), priority=r, handles=self._handles)
            for p, s, r in zip(items, params, ranks, strict=True)
        ]
        now = time.monotonic()
        for s in submissions:
            self._outputs.add(s, now)
            self._core.add(s.requests)
        ids = [s.request_id for s in submissions]
        self._waiting += ids
        return ids

    def wait_for_completion(self, *, use_tqdm: bool | Callable[..., Any] = True) -> list[RequestOutput]:
        """Run until everything enqueued is finished. Results come in the order enqueued. Interrupted (Ctrl-C), the
        engine drops what is left and stays usable."""
        done: dict[str, RequestOutput] = {}
        order, self._waiting = self._waiting, []
        bar = (use_tqdm if callable(use_tqdm) else tqdm)(total=len(order), disable=not use_tqdm, desc="requests", unit="req")
        made, start = 0, time.monotonic()
        try:
            with contextlib.closing(bar):
                while len(done) < len(order):
                    for out in self._step():
                        done[out.request_id] = out
                        made += sum(len(c.token_ids) for c in out.outputs)
                        bar.set_postfix_str(f"{made / (time.monotonic() - start):.1f} tok/s", refresh=False)
                        bar.update()
        finally:
            for request_id in order:
                if request_id not in done:
                    handles, _ = self._outputs.abort(request_id)
                    self._core.abort(handles)
        return [done[i] for i in order]

    def _step(self) -> Iterable[RequestOutput]:
        news = self._core.step()
        if news is None:
            return []
        processed = self._outputs.process(news)
        if processed.abort:
            self._core.abort(processed.abort)
        return [o for o in processed.outputs if o.finished]

    def stats(self) -> Stats:
        """What the engine holds and has done so far."""
        return self._core.stats()

    def reset_prefix_cache(self) -> bool:
        """Forget every cached prefix. Running requests go on. Others do not find what they have computed."""
        return self._core.reset_prefix_cache()

    def sleep(self, level: int = 1) -> None:
        """Give back weights, cache and device until `wake_up`. Levels 1 and 2 do the same: weights are read again from their
        files. ConfigError without `enable_sleep_mode`, RequestError while requests wait."""
        if not self._frontend.args.enable_sleep_mode:
            raise ConfigError("enable_sleep_mode: sleeping needs LLM(..., enable_sleep_mode=True)")
        if level not in (1, 2):
            raise RequestError(f"level: {level} is not 1 or 2", "level")
        if self._waiting:
            raise RequestError(f"{len(self._waiting)} requests are enqueued: call wait_for_completion() first")
        if self._engine is not None:
            self._engine[0].close()
            self._engine = None
            gc.collect()

    def wake_up(self) -> None:
        """Load the model again. Equal prompts get the text they had. Raises what the constructor raises."""
        if self._engine is None:
            with _uncollected():
                self._engine = self._with_core(build(self._frontend.args))

    def is_sleeping(self) -> bool:
        return self._engine is None

    def shutdown(self) -> None:
        """Give the device back. The object is not used again."""
        if self._frontend.chat:
            self._frontend.chat.close()
        if self._engine is not None:
            self._engine[0].close()


def _engine_args(model: str, fields: dict[str, Any]) -> EngineArgs:
    unknown = sorted(set(fields) - set(EngineArgs.__struct_fields__))
    if unknown:
        raise ConfigError(
            *(
                f"{name}: not an engine argument this version honours; `thalweg serve --help={name}` says why, if it is one"
                for name in unknown
            )
        )
    name = fields.get("served_model_name")
    if isinstance(name, str):
        fields = {**fields, "served_model_name": [name]}
    if isinstance(model, Path):
        model = str(model)
    try:
        return msgspec.convert({"model": model, **envs.engine_fields(), **fields}, EngineArgs)
    except msgspec.ValidationError as e:
        raise ConfigError(f"engine argument: {e}") from None


def _as_list(prompts: Any) -> list[Any]:
    """One prompt or many. A list of ints is one prompt."""
    if isinstance(prompts, str | Mapping) or (isinstance(prompts, list) and prompts and isinstance(prompts[0], int)):
        return [prompts]
    return list(prompts)


def _texts(data: Any, name: str) -> list[str]:
    """What `LLM.score` was given on one side."""
    return [score_text(item, name) for item in (data if isinstance(data, list | tuple) else [data])]


def _per_prompt(name: str, given: Any, n: int, default: Callable[[], Any]) -> list[Any]:
    if given is None:
        return [default() for _ in range(n)]
    if not isinstance(given, Sequence):
        return [given] * n
    if len(given) != n:
        raise RequestError(f"{name}: {len(given)} given for {n} prompts", name)
    return list(given)


def _final_only(params: SamplingParams) -> SamplingParams:
    if not isinstance(params, SamplingParams):
        raise RequestError(f"sampling_params must be SamplingParams, not {type(params).__name__}", "sampling_params")
    return msgspec.structs.replace(params, output_kind=RequestOutputKind.FINAL_ONLY)


def _source(template: str) -> str:
    """A template given as text or as a file."""
    if "{" not in template and Path(template).is_file():
        return Path(template).read_text(encoding="utf-8")
    return template


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Loading makes next to no garbage, and walking what it makes takes a tenth of its time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
