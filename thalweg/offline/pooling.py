"""What `LLM` offers of pooling models: vectors, classes, scores."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import msgspec
from tqdm import tqdm

from thalweg.engine.client.pairs import matched, pair_prompts, score_text, tokenization
from thalweg.engine.client.pooled import compared
from thalweg.errors import ConfigError, RequestError
from thalweg.lora import LoRARequest
from thalweg.offline.engine import LLMEngine
from thalweg.offline.prompts import Prompt, as_list, per_prompt
from thalweg.offline.sharing import Runs, in_turn
from thalweg.outputs import (
    ClassificationOutput,
    ClassificationRequestOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    PoolingOutput,
    PoolingRequestOutput,
    ScoringOutput,
    ScoringRequestOutput,
)
from thalweg.params import TOKEN_TASKS, PoolingParams
from thalweg.refused import no_adapter
from thalweg.text.cut import asked as cuts


class PoolingMethods:
    """The half of `LLM` for models that give vectors or classes."""

    llm_engine: LLMEngine
    runs: Runs
    _ids: itertools.count[int]

    @in_turn
    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[EmbeddingRequestOutput]:
        """The vector of every prompt, in prompt order, from a model that gives those. RequestError, naming the field, before
        anything runs. A prompt longer than the model takes is refused, unless it is to be cut: tokenization_kwargs
        {"truncate_prompt_tokens": -1}."""
        outs = self._pool(prompts, pooling_params, "embed", tokenization_kwargs, use_tqdm, lora_request)
        return [EmbeddingRequestOutput.made(o, EmbeddingOutput.from_base(o.outputs)) for o in outs]

    @in_turn
    def classify(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[ClassificationRequestOutput]:
        """The probability of every class, for every prompt, from a model with a head for that. Otherwise as `embed`."""
        outs = self._pool(prompts, pooling_params, "classify", tokenization_kwargs, use_tqdm, lora_request)
        return [ClassificationRequestOutput.made(o, ClassificationOutput.from_base(o.outputs)) for o in outs]

    @in_turn
    def encode(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        pooling_task: str | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """What a pooling model gives of every prompt, as an array: a vector or class numbers, by pooling_task (None: what the
        model does). Of token_embed and token_classify there is a row per token. Otherwise as `embed`."""
        return self._pool(prompts, pooling_params, pooling_task, tokenization_kwargs, use_tqdm, lora_request)

    @in_turn
    def reward(
        self,
        prompts: Prompt | Sequence[Prompt],
        /,
        *,
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """The rewards of every prompt's tokens, f32[tokens, 1], or of the steps in it: `encode` with token_classify."""
        return self._pool(prompts, pooling_params, "token_classify", tokenization_kwargs, use_tqdm, lora_request)

    @in_turn
    def score(
        self,
        data_1: Any,
        data_2: Any,
        /,
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        pooling_params: PoolingParams | None = None,
        lora_request: None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        chat_template: str | None = None,
    ) -> list[ScoringRequestOutput]:
        """How well texts go together: one with one, one with each of many, or each with its own. A cross-encoder reads both
        texts at once; of a model that gives vectors, it is the cosine of their angle, or MaxSim where each token has one.
        Otherwise as `embed`."""
        no_adapter(lora_request)
        if chat_template is not None:
            raise ConfigError("chat_template: pairs are written in the form that the model's files ask for; leave it out")
        pooling = self.llm_engine.client.inputs.check_pools("score")
        sides = [texts(data, name) for data, name in ((data_1, "data_1"), (data_2, "data_2"))]
        first, second = sides
        which = matched(len(first), len(second), ("data_1", "data_2"))
        if pooling.task == "embed":
            vectors = self._pool([*first, *second], pooling_params, "score", tokenization_kwargs, use_tqdm)
            return [compared(vectors[i], vectors[len(first) + j]) for i, j in which]
        keep, side, special = tokenization(tokenization_kwargs)
        if not special:
            raise RequestError("tokenization_kwargs: add_special_tokens: pairs need what is around them", "tokenization_kwargs")
        tokenizer = self.llm_engine.get_tokenizer()
        cut = cuts(keep, side, self.llm_engine.config.model.max_len, tokenizer.truncation_side)
        pairs = pair_prompts(tokenizer, [(first[i], second[j]) for i, j in which], cut, pooling)
        outs = self._pool(pairs, pooling_params, "score", None, use_tqdm)
        return [ScoringRequestOutput.made(o, ScoringOutput.from_base(o.outputs)) for o in outs]

    def _pool(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling_params: PoolingParams | Sequence[PoolingParams] | None,
        task: str | None,
        tokenization_kwargs: Mapping[str, Any] | None,
        use_tqdm: bool | Callable[..., Any],
        lora_request: Any = None,
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        engine = self.llm_engine
        engine.client.inputs.check_pools(task)
        items = as_list(prompts)
        params = per_prompt("pooling_params", pooling_params, len(items), PoolingParams)
        wrong = next((p for p in params if not isinstance(p, PoolingParams)), None)
        if wrong is not None:
            raise RequestError(f"pooling_params must be a PoolingParams, not {type(wrong).__name__}", "pooling_params")
        params = [_for_task(p, task) for p in params]
        adapters = per_prompt("lora_request", lora_request, len(items), lambda: None)
        submissions = [
            engine.prepare(str(next(self._ids)), p, s, tokenization_kwargs=tokenization_kwargs, lora_request=a)
            for p, s, a in zip(items, params, adapters, strict=True)
        ]
        ids = [s.request_id for s in submissions]
        with self.runs.dropping(ids):
            engine.submit(submissions)
            bar = (use_tqdm if callable(use_tqdm) else tqdm)(
                total=len(items), disable=not use_tqdm, desc="requests", unit="req"
            )
            with contextlib.closing(bar):
                done = self.runs.finish(ids, lambda out: bar.update())
        return [cast("PoolingRequestOutput[PoolingOutput]", done[i]) for i in ids]


def _for_task(params: PoolingParams, task: str | None) -> PoolingParams:
    """With the task that the method is for. RequestError where they say another that gives results per token, or where that
    does."""
    if task is None or params.task == task:
        return params
    if params.task is not None and {params.task, task} & set(TOKEN_TASKS):
        raise RequestError(f"pooling_params: task: {params.task} was said, but this asks for {task}; leave it out", "task")
    return msgspec.structs.replace(params, task=task)


def texts(data: Any, name: str) -> list[str]:
    """What `LLM.score` was given on one side."""
    return [score_text(item, name) for item in (data if isinstance(data, list | tuple) else [data])]
