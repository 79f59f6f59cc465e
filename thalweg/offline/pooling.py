"""Methods of `LLM` for pooling models: vectors, classes, scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from thalweg.config import PoolingConfig
from thalweg.engine.client.pairs import (
    ScoredItem,
    check_media_pairs,
    match_texts,
    media_pair_prompt,
    pair_prompts,
    read_scored_item,
)
from thalweg.engine.client.pooling_outputs import compare_vectors
from thalweg.engine.client.rankings import Rankings, find_rankings
from thalweg.errors import ConfigError, RequestError
from thalweg.lora import LoRARequest
from thalweg.offline.batches import Batches, UseTqdm
from thalweg.offline.chats import ChatRenderer
from thalweg.offline.prompts import Prompt, as_list, per_prompt
from thalweg.offline.sharing import in_turn
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

Result = TypeVar("Result")
Pooled = PoolingRequestOutput[PoolingOutput]


@dataclass(frozen=True, slots=True)
class PoolingTask(Generic[Result]):
    """The task of one method of `LLM`, and the type of its result."""

    task: str | None
    """Of PoolingParams. None: as the caller says."""
    output: Callable[[Pooled], Result]


def _identity(output: Pooled) -> Pooled:
    return output


EMBED = PoolingTask("embed", lambda o: EmbeddingRequestOutput.from_request_output(o, EmbeddingOutput.from_base(o.outputs)))
CLASSIFY = PoolingTask(
    "classify", lambda o: ClassificationRequestOutput.from_request_output(o, ClassificationOutput.from_base(o.outputs))
)
SCORE = PoolingTask("score", lambda o: ScoringRequestOutput.from_request_output(o, ScoringOutput.from_base(o.outputs)))
VECTORS = PoolingTask("score", _identity)
"""Texts scored by their vectors."""
REWARD = PoolingTask("token_classify", _identity)


class PoolingMethods(Batches):
    """The part of `LLM` for models that give vectors or classes."""

    @in_turn
    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        use_tqdm: UseTqdm = True,
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[EmbeddingRequestOutput]:
        """The vector of every prompt, in prompt order, from an embedding model. RequestError, naming the field, before
        anything runs. A prompt longer than the model's limit is rejected, unless it is to be cut: tokenization_kwargs
        {"truncate_prompt_tokens": -1}."""
        return self._pool(EMBED, prompts, pooling_params, tokenization_kwargs, use_tqdm, lora_request)

    @in_turn
    def classify(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        *,
        use_tqdm: UseTqdm = True,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[ClassificationRequestOutput]:
        """The probability of every class, for every prompt, from a model with a head for that. Otherwise as `embed`."""
        return self._pool(CLASSIFY, prompts, pooling_params, tokenization_kwargs, use_tqdm, lora_request)

    @in_turn
    def encode(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        *,
        use_tqdm: UseTqdm = True,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        pooling_task: str | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """The result of a pooling model for every prompt, as an array: a vector or class numbers, by pooling_task (None: the
        model's task). token_embed and token_classify give a row per token. Otherwise as `embed`."""
        task = PoolingTask(pooling_task, _identity)
        return self._pool(task, prompts, pooling_params, tokenization_kwargs, use_tqdm, lora_request)

    @in_turn
    def reward(
        self,
        prompts: Prompt | Sequence[Prompt],
        /,
        *,
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        use_tqdm: UseTqdm = True,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """The rewards of every prompt's tokens, f32[tokens, 1], or of the steps in it: `encode` with token_classify."""
        return self._pool(REWARD, prompts, pooling_params, tokenization_kwargs, use_tqdm, lora_request)

    @in_turn
    def score(
        self,
        data_1: Any,
        data_2: Any,
        /,
        *,
        use_tqdm: UseTqdm = True,
        pooling_params: PoolingParams | None = None,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        chat_template: str | None = None,
    ) -> list[ScoringRequestOutput]:
        """How well texts go together: one with one, one with each of many, or each with its own. A cross-encoder reads both
        texts at once; of a model that gives vectors, it is the cosine of their angle, or MaxSim where each token has one.
        lora_request: the adapter of all; where both texts are read at once, also a list with one (or None) for each pair.
        Otherwise as `embed`."""
        if chat_template is not None:
            raise ConfigError("chat_template: pairs are written in the form that the model's files ask for; omit it")
        pooling = self.llm_engine.client.inputs.check_pools("score")
        sides = read_items(data_1, "data_1"), read_items(data_2, "data_2")
        first, second = ([item.text for item in side] for side in sides)
        which = match_texts(len(first), len(second), ("data_1", "data_2"))
        has_media = check_media_pairs([*sides[0], *sides[1]], self.llm_engine.frontend.media, pooling)
        if has_media and tokenization_kwargs:
            raise RequestError("tokenization_kwargs: items with media are not cut; omit it", "tokenization_kwargs")
        rankings = find_rankings(pooling.form, which, bool(tokenization_kwargs))
        if rankings is not None:
            return self._rank(rankings, (first, second), pooling_params, use_tqdm, lora_request)
        if pooling.task == "embed":
            if isinstance(lora_request, Sequence):
                raise RequestError(
                    "lora_request: texts of this model are read one by one; give one adapter for all", "lora_request"
                )
            texts = [self._item_prompt(item) for side in sides for item in side] if has_media else [*first, *second]
            vectors = self._pool(VECTORS, texts, pooling_params, tokenization_kwargs, use_tqdm, lora_request)
            return [compare_vectors(vectors[i], vectors[len(first) + j]) for i, j in which]
        cut, special = self.llm_engine.client.prompts.cut(tokenization_kwargs)
        if not special:
            raise RequestError(
                "tokenization_kwargs: add_special_tokens: pairs need their special tokens", "tokenization_kwargs"
            )
        tokenizer = self.llm_engine.get_tokenizer()
        pairs = (
            self._media_pairs(sides, which, pooling) if has_media
            else pair_prompts(tokenizer, [(first[i], second[j]) for i, j in which], cut, pooling)
        )  # fmt: skip
        return self._pool(SCORE, pairs, pooling_params, None, use_tqdm, lora_request)

    def _rank(
        self, rankings: Rankings, texts: tuple[list[str], list[str]], pooling_params: PoolingParams | None,
        use_tqdm: UseTqdm, lora_request: Any,
    ) -> list[ScoringRequestOutput]:  # fmt: skip
        """The scores of a listwise reranker. Those of a query's documents have its prompt."""
        tokenizer = self.llm_engine.get_tokenizer()
        outputs = self._pool(VECTORS, rankings.prompts(tokenizer, texts), pooling_params, None, use_tqdm, lora_request)
        failed = next((o for o in outputs if o.error is not None), None)
        if failed is not None:
            raise RequestError(f"data_1: {failed.error}", "data_1")
        scores = rankings.scores(tokenizer, [(o.prompt_token_ids, o.outputs.data) for o in outputs])
        return [
            ScoringRequestOutput(
                outputs[k].request_id, ScoringOutput(score), outputs[k].prompt_token_ids, outputs[k].num_cached_tokens
            )
            for k, score in zip(rankings.prompt_of_each, scores, strict=True)
        ]

    def _item_prompt(self, item: ScoredItem) -> Prompt:
        """The prompt of an item with media: a message of a user, through the chat template."""
        frontend = self.llm_engine.frontend
        if frontend.chat is None:
            raise ConfigError("skip_tokenizer_init: there is no tokenizer")
        return ChatRenderer(frontend, frontend.chat, None, None, {}, "auto", False, False).render_item(item.parts)

    def _media_pairs(
        self, sides: tuple[list[ScoredItem], list[ScoredItem]], which: Sequence[tuple[int, int]], pooling: PoolingConfig
    ) -> list[Prompt]:
        media = self.llm_engine.frontend.media
        assert media is not None
        tokenizer, read = self.llm_engine.get_tokenizer(), [[media.read(item.sources) for item in side] for side in sides]
        return [
            media_pair_prompt(tokenizer, media, (sides[0][i], sides[1][j]), (read[0][i], read[1][j]), pooling) for i, j in which
        ]

    def _pool(
        self, task: PoolingTask[Result], prompts: Prompt | Sequence[Prompt],
        pooling_params: PoolingParams | Sequence[PoolingParams] | None, tokenization_kwargs: Mapping[str, Any] | None,
        use_tqdm: UseTqdm, lora_request: Any = None,
    ) -> list[Result]:  # fmt: skip
        self.llm_engine.client.inputs.check_pools(task.task)
        items = as_list(prompts)
        params = per_prompt("pooling_params", pooling_params, len(items), PoolingParams)
        wrong = next((p for p in params if not isinstance(p, PoolingParams)), None)
        if wrong is not None:
            raise RequestError(f"pooling_params must be a PoolingParams, not {type(wrong).__name__}", "pooling_params")
        params = [_with_task(p, task.task) for p in params]
        prepared = self._prepare(items, params, tokenization_kwargs=tokenization_kwargs, lora_request=lora_request)
        return [task.output(o) for o in self._run(prepared, use_tqdm)]


def _with_task(params: PoolingParams, task: str | None) -> PoolingParams:
    """With the task that the method is for. RequestError where they say another that gives results per token, or where that
    does."""
    if task is None or params.task == task:
        return params
    if params.task is not None and {params.task, task} & set(TOKEN_TASKS):
        raise RequestError(f"pooling_params: task: {params.task}, but this method needs {task}; omit it", "task")
    return msgspec.structs.replace(params, task=task)


def read_items(data: Any, name: str) -> list[ScoredItem]:
    """The items on one side of `LLM.score`."""
    return [read_scored_item(item, name) for item in (data if isinstance(data, list | tuple) else [data])]
