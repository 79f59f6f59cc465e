"""From a caller's request to the engine's: every text, default and name becomes token ids and plain numbers.

All errors of a request are found here, before it reaches the engine, and named by field. Knows no transport and no
scheduling.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from thalweg.config import USES, EngineConfig, PoolingConfig
from thalweg.engine.client import embeds, transcription
from thalweg.engine.client.grammars import StructuredOutputs
from thalweg.engine.client.media import MEDIA, NAME, MediaPreprocessor, first_position
from thalweg.engine.client.pool_shape import PoolShape, pool_shape, token_types
from thalweg.engine.client.prefix import make_prefix
from thalweg.engine.client.prompt_ids import Prompt, PromptEncoder
from thalweg.engine.client.sampling_reader import SamplingReader
from thalweg.engine.client.source_text import SourceReader
from thalweg.engine.client.submission import PoolingSubmission, Submission, choice_seed
from thalweg.engine.client.thinking import ReasoningMarkers
from thalweg.engine.messages import EngineRequest, Input, TokenSampling
from thalweg.errors import RequestError
from thalweg.media.kinds.base import MediaItem
from thalweg.media.speakers.base import KIND as UTTERANCE
from thalweg.params import PoolingParams, RequestOutputKind, SamplingParams
from thalweg.text.tokenizer import Tokenizer

NO_SHARED_STORE = (
    "kv_transfer_params: needs an engine with a store that others share: --kv-transfer-config with disk or redis, and "
    "--kv-key-secret"
)
SPOKEN = "texts of this model are sent with speak()"


class InputProcessor:
    """Turns prompts into submissions. Cheap except for tokenising. Thread-safe except for the order seeds are drawn
    in."""

    def __init__(
        self,
        config: EngineConfig,
        tokenizer: Tokenizer | None,
        *,
        eos_ids: tuple[int, ...] = (),
        seed_source: random.Random | None = None,
        structured: StructuredOutputs | None = None,
        media: MediaPreprocessor | None = None,
        marks: ReasoningMarkers | None = None,
        shares_store: bool = False,
    ) -> None:
        """tokenizer None: prompts must be token ids, and text-valued parameters are rejected (skip_tokenizer_init). eos_ids:
        the model's end-of-sequence ids. seed_source: the source of seeds for requests without one. structured: the validator
        of grammars; None: no grammars. media: the preprocessor of media; None: a text-only model. marks: of its reasoning;
        None: unknown. shares_store: other engines read the blocks of this one, and it theirs."""
        self._shares_store, self._engine_id = shares_store, uuid.uuid4().hex
        self._media, self._speech = media, config.model.speech
        source = config.model.source
        self._source = None if source is None else SourceReader(source, tokenizer, config.model.vocab, config.model.max_len)
        self._prompts = PromptEncoder(config, tokenizer)
        self._sampling = SamplingReader(config, tokenizer, eos_ids, structured, marks)
        self._seeds = seed_source or random.Random(config.model.seed)
        self._pooling, self._tasks = config.model.pooling, config.model.tasks
        self._longest = config.model.max_len
        self._pad = None if tokenizer is None else tokenizer.id_of(tokenizer.special_tokens.get("pad_token"))
        self._budget = config.scheduler.token_budget
        self._vocab, self._hidden = config.model.vocab, config.model.hidden
        self._prompt_ids, self._source_columns = config.model.prompt_ids, config.model.source_columns
        self._speaks, self._speech_end = config.model.speaks, config.model.speech_end
        self._returns_states = config.model.returns_states
        self._source_required, self._prefix_lm = config.model.source_required, config.model.prefix_lm

    def process(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams,
        *,
        priority: int = 0,
        handles: Iterator[int],
        first_choice: int = 0,
    ) -> Submission:
        """One checked submission. RequestError names the field (`param`) and the remedy. first_choice: the number that seeds
        count from.

        A prompt that leaves no room for one token is rejected. max_tokens beyond the context is not: the request ends with
        finish_reason "length" when the context is full. (An HTTP layer that must reject it compares `len(prompt_ids) +
        max_tokens` with the context itself.)"""
        self.check_generates()
        if not isinstance(params, SamplingParams):
            raise RequestError(f"sampling_params must be a SamplingParams, not {type(params).__name__}", "sampling_params")
        _check_priority(priority)
        if (params.hands_over or params.takes_over) and not self._shares_store:
            raise RequestError(NO_SHARED_STORE, "kv_transfer_params")
        answer: list[int] | None = None
        mel = None
        if self._source is not None:
            prompt, answer = self._source.read(prompt)
            self._source.check(params)
        else:
            prompt, mel = transcription.read(prompt, self._speech)
        prompt, spoken = self._with_utterance(prompt, self._speaks)
        prompt, items = _with_media(prompt)
        text, ids, salt, embedded = self._encode_prompt(prompt, params)
        source_media = self._media_inputs(ids, items, params.n, text) if answer is not None else ()
        tokens, inputs = self._arrays(ids if answer is None else answer, () if answer else items, embedded, params.n, text)
        shared = self._sampling.read(params, ids if answer is None else answer)
        transcription.check(params, mel, 0 if self._speech is None else self._speech.heads, len(ids))
        aligned = transcription.ALIGNMENT in (params.extra_args or {})
        whole = transcription.check_states(params, self._returns_states, len(ids))
        if mel is not None and self._speech is not None:
            inputs = (transcription.make_input(mel, aligned), *inputs)
            shared = transcription.sampling(self._speech, ids, shared)
        if spoken is not None:
            inputs, shared = spoken, {**shared, "eos_ids": (self._speech_end,)}
        if self._prefix_lm:
            inputs = (make_prefix(tokens, inputs), *inputs)
        shared = _end_with_inputs(shared, inputs, len(tokens))
        if self._source is not None:
            inputs, shared = (self._source.make_input(ids, source_media), *inputs), self._source.sampling(shared)
        seed = params.seed if params.seed is not None else self._seeds.getrandbits(63)
        scores = -1 if params.prompt_logprobs is None else self._sampling.logprobs("prompt_logprobs", params.prompt_logprobs)
        requests = []
        for i in range(params.n):
            mine = scores if i == 0 else -1  # the prompt is the same for every choice: score it once
            skip = bool(params.skip_reading_prefix_cache) or mine >= 0 or aligned or whole or spoken is not None
            sampling = TokenSampling(**shared, seed=choice_seed(seed, first_choice + i), prompt_logprobs=mine)
            request = EngineRequest(
                handle=next(handles), tokens=tokens, prompt_len=len(tokens), sampling=sampling, inputs=inputs,
                priority=priority,
                cache_salt=salt, read_prefix_cache=not skip, streamed=params.output_kind is not RequestOutputKind.FINAL_ONLY,
                hand_over=params.hands_over and i == 0, least_cached=params.cache_hit_threshold or 0.0,
                retain=params.cache_retention or 0.0,
            )  # fmt: skip
            requests.append(request)
        handover = self._handover(request_id) if params.hands_over else None
        return Submission(request_id, text, ids, params, requests, handover=handover, answer_ids=answer)

    def _handover(self, request_id: str) -> dict[str, Any]:
        """kv_transfer_params for the next engine. Names of blocks follow from the tokens, so it needs no others."""
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_engine_id": self._engine_id,
            "remote_request_id": request_id,
            "remote_block_ids": [],
            "remote_host": None,
            "remote_port": None,
        }

    def check_generates(self) -> None:
        """RequestError where the model gives vectors."""
        if self._pooling is not None:
            raise RequestError(f"model: it does not generate text: use {USES[self._tasks[0]]}", "model")

    def process_pooling(
        self, request_id: str, prompt: Prompt, params: PoolingParams, *, priority: int = 0, handles: Iterator[int]
    ) -> PoolingSubmission:
        """As `process`, for a vector or classes. A prompt beyond the model's limit is rejected, not cut. It may have
        "token_type_ids" too, where the model has token types: they mark the two texts in one prompt."""
        if not isinstance(params, PoolingParams):
            raise RequestError(f"pooling_params must be a PoolingParams, not {type(params).__name__}", "pooling_params")
        if self._speaks:
            return self._process_codes(request_id, prompt, params, priority, next(handles))
        pooling = self.check_pools(params.task)
        shape = self.check_pooling(params)
        _check_priority(priority)
        prompt, utterance = self._with_utterance(prompt, pooling.task == "speech")
        prompt, items = _with_media(prompt)
        fields = dict(prompt) if isinstance(prompt, Mapping) else {}
        types = fields.pop("token_type_ids", None)
        text, ids, salt = self._prompts.encode(fields if isinstance(prompt, Mapping) else prompt)
        if pooling.fills and not items:
            ids = self._fill(ids)
        read = ids if self._source is None else self._source.shift(ids)
        tokens, inputs = self._arrays(read, items, None, 1, text)
        if self._source is not None:
            inputs = (self._source.make_input(ids),)
        if utterance is not None:
            inputs = utterance
        if pooling.encoded and items and shape.each:
            raise RequestError("task: an image has one vector with this model, and none per token", "task")
        if types is not None:
            tokens += self._vocab * token_types(types, len(ids), pooling.types)
        request = EngineRequest(
            handle=next(handles), tokens=tokens, prompt_len=len(read), priority=priority, cache_salt=salt, pool=True,
            encode_only=utterance is not None,
            inputs=inputs, sampling=TokenSampling(max_tokens=1, each_token=shape.each),
            read_prefix_cache=pooling.caches and not shape.each and not params.skip_reading_prefix_cache,
        )  # fmt: skip
        return PoolingSubmission(request_id, text, ids, params, shape, request)

    def _process_codes(
        self, request_id: str, prompt: Prompt, params: PoolingParams, priority: int, handle: int
    ) -> PoolingSubmission:
        """For the samples of codes."""
        rest, codes = self._with_utterance(prompt, True)
        assert codes is not None
        text, ids, _ = self._prompts.encode(rest)
        request = EngineRequest(
            handle=handle, tokens=np.array(ids, np.int32), prompt_len=len(ids), priority=priority, pool=True, encode_only=True,
            inputs=codes, sampling=TokenSampling(max_tokens=1), read_prefix_cache=False,
        )  # fmt: skip
        return PoolingSubmission(request_id, text, ids, params, PoolShape("none"), request)

    @staticmethod
    def _with_utterance(prompt: Any, speaks: bool) -> tuple[Any, tuple[Input, ...] | None]:
        """A prompt, and the inputs of its utterance. RequestError where the model speaks and there is none, and the other way
        round."""
        found = prompt.get(UTTERANCE) if isinstance(prompt, Mapping) else None
        if (found is None) == speaks:
            why = SPOKEN if speaks else f"{UTTERANCE}: this model does not speak"
            raise RequestError(f"prompt: {why}", "prompt")
        if found is None:
            return prompt, None
        result = found if isinstance(found, tuple) else (found,)
        if not all(isinstance(each, Input) for each in result):
            raise RequestError(
                f"prompt: {UTTERANCE}: must be what a speaker made of a text, not {type(found).__name__}", "prompt"
            )
        return {k: v for k, v in prompt.items() if k != UTTERANCE}, result

    def _fill(self, ids: list[int]) -> list[int]:
        """A text of this many tokens, filled up with the tokenizer's padding token."""
        if self._pad is None:
            raise RequestError(
                f"prompt_token_ids: {len(ids)} tokens, and no padding token is known to fill them up to {self._longest}",
                "prompt_token_ids",
            )
        return [*ids, *[self._pad] * (self._longest - len(ids))]

    def check_pooling(self, params: PoolingParams) -> PoolShape:
        """The shape of a result. RequestError for parameters that the model does not support."""
        return pool_shape(self.check_pools(params.task), params, self._budget)

    def check_pools(self, task: str | None = None) -> PoolingConfig:
        """RequestError where the model generates, or cannot do this task of a pooling model."""
        if self._speaks:
            raise RequestError(f"prompt: {SPOKEN}", "prompt")
        if self._pooling is None:
            raise RequestError(
                "model: it generates text: use generate(), or for vectors start it with --runner pooling (runner='pooling')",
                "model",
            )
        if task is not None and task not in self._tasks:
            raise RequestError(f"task: this model cannot {task}; it can {' and '.join(self._tasks)}", "task")
        return self._pooling

    def prepare(self, params: SamplingParams) -> None:
        """Read the slow parameters in advance, so that `process` finds the results cached. For a thread. RequestError as
        there."""
        self._sampling.prepare(params)

    def _arrays(
        self, ids: list[int], items: Sequence[MediaItem], embedded: Input | None, choices: int, text: str | None
    ) -> tuple[np.ndarray, tuple[Input, ...]]:
        """(tokens i32[N], inputs in the order of their positions)."""
        inputs = self._media_inputs(ids, items, choices, text)
        tokens = np.array(ids, np.int32)
        for id, unused in self._prompt_ids.items():
            tokens[tokens == id] = unused
        if embedded is not None:
            tokens[embedded.positions] = embeds.PLACEHOLDER
            inputs = tuple(sorted((*inputs, embedded), key=first_position))
        if self._source_columns and not any(item.is_source for item in inputs):
            if self._source_required:
                raise RequestError("prompt: this model requires media; send an item with every prompt", "prompt")
            inputs = (_absent_source(self._source_columns), *inputs)
        return tokens, inputs

    def _media_inputs(self, ids: list[int], items: Sequence[MediaItem], choices: int, text: str | None) -> tuple[Input, ...]:
        if not items:
            return ()
        if self._media is None:
            raise RequestError(f"prompt: {NAME} is not supported by this text-only model; omit it", "prompt")
        return self._media.inputs(ids, items, choices, text)

    def _encode_prompt(self, prompt: Prompt, params: SamplingParams) -> tuple[str | None, list[int], str, Input | None]:
        """As `PromptEncoder.encode`, for a prompt that may consist of embeddings."""
        if not isinstance(prompt, Mapping) or embeds.NAME not in prompt:
            return *self._prompts.encode(prompt), None
        if self._source is not None:
            raise RequestError(f"{embeds.NAME}: this model's encoder reads text; send text or token ids", embeds.NAME)
        if not self._hidden:
            raise RequestError(f"{embeds.NAME}: this engine runs no model; send text or token ids", embeds.NAME)
        embedded, rest = embeds.read(prompt, self._hidden)
        embeds.check(params, embedded)
        return *self._prompts.encode(rest), embedded


def _end_with_inputs(fields: dict[str, Any], inputs: Sequence[Input], prompt: int) -> dict[str, Any]:
    """Fields of TokenSampling for a sequence whose answer is covered by an input: it ends with the last vector."""
    covered = max((int(item.positions[-1]) + 1 for item in inputs if item.positions.size), default=0)
    return fields if covered <= prompt else {**fields, "max_tokens": min(fields["max_tokens"], covered - prompt)}


def _absent_source(columns: int) -> Input:
    """The source of cross-attention of a prompt without an image."""
    nothing = np.zeros((1, columns), np.float32)
    return Input(kind="none", digest=b"", positions=np.zeros(0, np.int32), data=(nothing,))


def _with_media(prompt: Any) -> tuple[Any, Sequence[MediaItem]]:
    """A prompt, and the media read for it."""
    if not isinstance(prompt, Mapping):
        return prompt, ()
    if NAME in prompt:
        raise RequestError(f"prompt: {NAME} is not supported by this text-only model; omit it", "prompt")
    return {k: v for k, v in prompt.items() if k != MEDIA}, prompt.get(MEDIA) or ()


def _check_priority(priority: Any) -> None:
    if isinstance(priority, bool) or not isinstance(priority, int) or not -(2**31) <= priority < 2**31:
        raise RequestError(f"priority must be a 32-bit integer, not {priority!r}", "priority")
