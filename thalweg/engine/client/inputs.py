"""From what a caller wrote to what the engine runs: every text, default and name becomes token ids and plain numbers.

Everything wrong with a request is found here, before the engine hears of it, and named by field. Knows no transport and
no scheduling.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, TypeVar

import msgspec
import numpy as np

from thalweg.config import EngineConfig, PoolingConfig
from thalweg.engine.client import embeds, hearing, thinking
from thalweg.engine.client.grammars import StructuredOutputs
from thalweg.engine.client.media import MEDIA, NAME, Media
from thalweg.engine.client.pool_shape import PoolShape, pool_shape, token_types
from thalweg.engine.client.thinking import Marks
from thalweg.engine.messages import EngineRequest, Input, TokenSampling
from thalweg.errors import RequestError
from thalweg.features import all_features
from thalweg.grammar.source import Source
from thalweg.lora import LoRARequest
from thalweg.media.kinds.base import Medium
from thalweg.params import SAMPLER, PoolingParams, RequestOutputKind, SamplingParams
from thalweg.prompts import REFUSED_KEYS
from thalweg.text.stops import automaton
from thalweg.text.tokenizer import Tokenizer

Prompt = str | Sequence[int] | Mapping[str, Any]
"""Text, token ids, {"prompt": text}, or {"prompt_token_ids": ids} with "prompt" and "cache_salt" beside them if wanted."""

MAX_SALT = 1024
RESERVED = "\0"
"""Salts of blocks with inputs begin so (`Request.salt_of`), and no caller's may."""
KEPT_WORDS = 16
"""Lists of bad words kept as tokens: the prompts and choices of a request share theirs."""
_KEYS = frozenset({"prompt", "prompt_token_ids", "cache_salt"})
_WORD = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Submission:
    """A checked request: what the caller sees of it, and one EngineRequest per choice, in order of index."""

    request_id: str
    prompt: str | None
    prompt_ids: list[int]
    params: SamplingParams
    requests: list[EngineRequest] = field(repr=False)
    lora_request: LoRARequest | None = None
    """The adapter it is served with. Its digest is in `requests`."""


@dataclass(frozen=True, slots=True)
class PoolingSubmission:
    """A checked request to a pooling model."""

    request_id: str
    prompt: str | None
    prompt_ids: list[int]
    params: PoolingParams
    shape: PoolShape
    """What becomes of the result."""
    request: EngineRequest = field(repr=False)


AnySubmission = TypeVar("AnySubmission", bound=Submission | PoolingSubmission)


def with_adapter(submission: AnySubmission, request: LoRARequest, digest: bytes) -> AnySubmission:
    """The same request, served with this adapter."""
    if isinstance(submission, PoolingSubmission):
        return replace(submission, request=msgspec.structs.replace(submission.request, adapter=digest))
    adapted = [msgspec.structs.replace(r, adapter=digest) for r in submission.requests]
    return replace(submission, requests=adapted, lora_request=request)


def choice_seed(seed: int, index: int) -> int:
    """The seed of choice `index`: the request's own for 0, else SplitMix64 (Steele, Lea and Flood, 2014) of it.

    A signed 64-bit number, as SamplingParams.seed is."""
    if index == 0:
        return seed
    z = (seed + index * 0x9E3779B97F4A7C15) & _WORD
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _WORD
    z ^= z >> 31
    return z - (1 << 64) if z >> 63 else z


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
        media: Media | None = None,
        marks: Marks | None = None,
    ) -> None:
        """tokenizer None: prompts must be token ids, and nothing text-valued may be asked (skip_tokenizer_init).
        eos_ids: the model's end-of-sequence ids. seed_source: where seeds of requests without one come from.
        structured: who judges grammars; None: there are none. media: who reads media; None: the model takes text only.
        marks: of its reasoning; None: nobody knows them."""
        self._structured, self._media, self._marks = structured, media, marks
        self._tokenizer = tokenizer
        self._eos_ids = eos_ids
        self._seeds = seed_source or random.Random(config.model.seed)
        self._max_len = config.model.max_len
        self._sound = config.model.sound
        self._pooling, self._tasks = config.model.pooling, config.model.tasks
        self._budget = config.scheduler.token_budget
        self._vocab, self._hidden = config.model.vocab, config.model.hidden
        self._bad_words = lru_cache(KEPT_WORDS)(self._read_bad_words)
        self._max_logprobs = config.model.vocab if config.model.max_logprobs == -1 else config.model.max_logprobs

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
        """One checked submission. RequestError names the field (`param`) and the remedy. first_choice: the number
        that seeds count from.

        A prompt that leaves no room for one token is refused. max_tokens beyond the context is not: the request ends
        with finish_reason "length" when the context is full. (An HTTP layer that must refuse it compares
        `len(prompt_ids) + max_tokens` with the context itself.)"""
        self.check_generates()
        if not isinstance(params, SamplingParams):
            raise RequestError(f"sampling_params must be a SamplingParams, not {type(params).__name__}", "sampling_params")
        _check_priority(priority)
        prompt, mel = hearing.read(prompt, self._sound)
        prompt, items = _with_media(prompt)
        text, ids, salt, embedded = self._embedded(prompt, params)
        inputs = self._media_inputs(ids, items, params.n)
        tokens = np.array(ids, np.int32)
        if embedded is not None:
            tokens[embedded.positions] = embeds.PLACEHOLDER
            inputs = tuple(sorted((*inputs, embedded), key=lambda item: int(item.positions[0])))
        shared = self._sampling(params, ids)
        hearing.check(params, mel)
        if mel is not None and self._sound is not None:
            inputs, shared = (hearing.make_input(mel), *inputs), hearing.sampling(self._sound, ids, shared)
        seed = params.seed if params.seed is not None else self._seeds.getrandbits(63)
        scores = -1 if params.prompt_logprobs is None else self._logprobs("prompt_logprobs", params.prompt_logprobs)
        requests = []
        for i in range(params.n):
            mine = scores if i == 0 else -1  # the prompt is the same for every choice: score it once
            skip = mine >= 0 if params.skip_reading_prefix_cache is None else params.skip_reading_prefix_cache or mine >= 0
            requests.append(
                EngineRequest(
                    handle=next(handles),
                    tokens=tokens,
                    prompt_len=len(ids),
                    sampling=TokenSampling(**shared, seed=choice_seed(seed, first_choice + i), prompt_logprobs=mine),
                    inputs=inputs,
                    priority=priority,
                    cache_salt=salt,
                    read_prefix_cache=not skip,
                    streamed=params.output_kind is not RequestOutputKind.FINAL_ONLY,
                )
            )
        return Submission(request_id, text, ids, params, requests)

    def check_generates(self) -> None:
        """RequestError where the model gives vectors."""
        if self._pooling is not None:
            use = " or ".join(f"{t}()" for t in self._tasks)
            raise RequestError(f"model: it does not generate text: use {use}", "model")

    def process_pooling(
        self, request_id: str, prompt: Prompt, params: PoolingParams, *, priority: int = 0, handles: Iterator[int]
    ) -> PoolingSubmission:
        """As `process`, for a vector or classes. A prompt that the model cannot take whole is refused, not cut. It may say
        "token_type_ids" too, where the model tells types of tokens apart: of two texts in one prompt, which."""
        if not isinstance(params, PoolingParams):
            raise RequestError(f"pooling_params must be a PoolingParams, not {type(params).__name__}", "pooling_params")
        pooling = self.check_pools(params.task)
        shape = self.check_pooling(params)
        _check_priority(priority)
        fields = dict(prompt) if isinstance(prompt, Mapping) else {}
        types = fields.pop("token_type_ids", None)
        text, ids, salt = self._prompt(fields if isinstance(prompt, Mapping) else prompt)
        tokens = np.array(ids, np.int32)
        if types is not None:
            tokens += self._vocab * token_types(types, len(ids), pooling.types)
        request = EngineRequest(
            handle=next(handles), tokens=tokens, prompt_len=len(ids), priority=priority, cache_salt=salt, pool=True,
            sampling=TokenSampling(max_tokens=1, each_token=shape.each),
            read_prefix_cache=pooling.caches and not shape.each and not params.skip_reading_prefix_cache,
        )  # fmt: skip
        return PoolingSubmission(request_id, text, ids, params, shape, request)

    def check_pooling(self, params: PoolingParams) -> PoolShape:
        """What becomes of a result. RequestError for what the model cannot do of these."""
        return pool_shape(self.check_pools(params.task), params, self._budget)

    def check_pools(self, task: str | None = None) -> PoolingConfig:
        """RequestError where the model generates, or cannot do this task of a pooling model."""
        if self._pooling is None:
            raise RequestError(
                "model: it generates text: use generate(), or for vectors start it with --runner pooling (runner='pooling')",
                "model",
            )
        if task is not None and task not in self._tasks:
            raise RequestError(f"task: this model cannot {task}; it can {' and '.join(self._tasks)}", "task")
        return self._pooling

    def prepare(self, params: SamplingParams) -> None:
        """Reads what takes long of the parameters, so that `process` finds it read. For a thread. RequestError as
        there."""
        automaton(tuple(params.stop or ()))
        self._grammar(params)
        self._bad_words(tuple(params.bad_words or ()))

    # ------------------------------------------------------------ prompts

    def _media_inputs(self, ids: list[int], items: Sequence[Medium], choices: int) -> tuple[Input, ...]:
        if not items:
            return ()
        if self._media is None:
            raise RequestError(f"prompt: {NAME} is not supported by this model, which takes text alone; leave it out", "prompt")
        return self._media.inputs(ids, items, choices)

    def _embedded(self, prompt: Prompt, params: SamplingParams) -> tuple[str | None, list[int], str, Input | None]:
        """As `_prompt`, of a prompt that may be given as embeddings too."""
        if not isinstance(prompt, Mapping) or embeds.NAME not in prompt:
            return *self._prompt(prompt), None
        if not self._hidden:
            raise RequestError(f"{embeds.NAME}: this engine runs no model; send text or token ids", embeds.NAME)
        embedded, rest = embeds.read(prompt, self._hidden)
        embeds.check(params, embedded)
        return *self._prompt(rest), embedded

    def _prompt(self, prompt: Prompt) -> tuple[str | None, list[int], str]:
        """(text if known, ids, cache salt)."""
        fields: Mapping[str, Any]
        if isinstance(prompt, str):
            fields = {"prompt": prompt}
        elif isinstance(prompt, Mapping):
            fields = prompt
        elif isinstance(prompt, Sequence | np.ndarray) and not isinstance(prompt, bytes):
            fields = {"prompt_token_ids": list(prompt)}
        else:
            raise RequestError(f"prompt must be text or token ids, not {type(prompt).__name__}", "prompt")
        for name in REFUSED_KEYS.keys() & fields.keys():
            raise RequestError(f"prompt: {name}: {REFUSED_KEYS[name]}", "prompt")
        unknown = sorted(str(k) for k in fields.keys() - _KEYS)
        if unknown:
            raise RequestError(f"prompt: {', '.join(unknown)} is not supported; known are {', '.join(sorted(_KEYS))}", "prompt")
        text, ids = fields.get("prompt"), fields.get("prompt_token_ids")
        if text is not None and not isinstance(text, str):
            raise RequestError(f"prompt must be text, not {type(text).__name__}", "prompt")
        if ids is not None:
            param = "prompt_token_ids" if text is None else "prompt"
            ids = self._checked_ids("prompt_token_ids", ids)
        elif text is not None:
            param, ids = "prompt", self._tokenise(text)
        else:
            raise RequestError("prompt: give prompt (text) or prompt_token_ids", "prompt")
        self._check_length(param, len(ids))
        return text, ids, _salt(fields.get("cache_salt"))

    def _tokenise(self, text: str) -> list[int]:
        tokenizer = self._tokenizer
        if tokenizer is None:
            raise RequestError("prompt: this engine runs without a tokenizer; send prompt_token_ids", "prompt")
        if len(text) > self._max_len * tokenizer.max_token_chars:  # no need to tokenise it to know
            raise RequestError(
                f"prompt: {len(text)} characters cannot fit the context of {self._max_len} tokens; shorten the prompt", "prompt"
            )
        ids = self._encode("prompt", text, self._sound is None)  # what hears has prompts of special tokens, all of them said
        self._check_ids("prompt", ids)
        return ids

    def _encode(self, param: str, text: str, add_special_tokens: bool) -> list[int]:
        assert self._tokenizer is not None
        try:
            return self._tokenizer.encode(text, add_special_tokens)
        except RequestError as e:
            raise RequestError(f"{param}: {e}", param) from e

    def _encode_all(self, words: Sequence[str]) -> list[tuple[int, ...]]:
        """In one call, which leaves the interpreter to other threads."""
        assert self._tokenizer is not None or not words
        try:
            return [tuple(ids) for ids in self._tokenizer.encode_batch(words, False)] if self._tokenizer and words else []
        except RequestError as e:
            raise RequestError(f"bad_words: {e}", "bad_words") from e

    def _checked_ids(self, param: str, ids: Any) -> list[int]:
        if isinstance(ids, np.ndarray):
            ids = ids.tolist()
        if not isinstance(ids, Sequence) or isinstance(ids, str | bytes):
            raise RequestError(f"{param} must be a list of token ids, not {type(ids).__name__}", param)
        plain = set(map(type, ids)) == {int}  # the quick way: prompts may be long
        out = list(ids) if plain else [i.item() if isinstance(i, np.integer) else i for i in ids]
        if not plain and not all(type(i) is int for i in out):
            bad = next(i for i in out if type(i) is not int)
            raise RequestError(f"{param} must hold integers, not {bad!r}", param)
        self._check_ids(param, out)
        return out

    def _check_ids(self, param: str, ids: Sequence[int]) -> None:
        if ids and not (min(ids) >= 0 and max(ids) < self._vocab):
            bad = [i for i in ids if not 0 <= i < self._vocab]
            shown = ", ".join(map(str, bad[:10])) + (" ..." if len(bad) > 10 else "")
            words = f"token id {shown} is" if len(bad) == 1 else f"token ids {shown} are"
            raise RequestError(f"{param}: {words} not in the vocabulary (0 to {self._vocab - 1})", param)

    def _check_length(self, param: str, length: int) -> None:
        if length == 0:
            raise RequestError(f"{param} is empty; send at least one token", param)
        if self._pooling is not None and length > self._max_len:
            raise RequestError(
                f"{param}: {length} tokens, and the model takes {self._max_len}; shorten the text, or let it be cut with "
                "truncate_prompt_tokens=-1",
                param,
            )
        if self._pooling is None and length >= self._max_len:
            raise RequestError(
                f"{param}: {length} tokens leave no room to answer in a context of {self._max_len} tokens; shorten the prompt"
                " or start the engine with a larger --max-model-len",
                param,
            )

    # ------------------------------------------------------------ parameters

    def _sampling(self, p: SamplingParams, prompt: Sequence[int]) -> dict[str, Any]:
        """The fields of TokenSampling that every choice shares."""
        if p.stop and self._tokenizer is None:
            raise RequestError("stop: this engine runs without a tokenizer; use stop_token_ids", "stop")
        for name, ids in (
            ("stop_token_ids", p.stop_token_ids),
            ("allowed_token_ids", p.allowed_token_ids),
            ("logit_bias", list(p.logit_bias or ())),
        ):
            self._check_ids(name, ids or [])
        grammar = self._grammar(p)
        room = self._max_len - len(prompt)
        max_tokens = room if p.max_tokens is None else min(p.max_tokens, room)
        return {
            "max_tokens": max_tokens,
            # With a grammar the end is where it leaves nothing else.
            "min_tokens": max_tokens if grammar is not None and p.ignore_eos else min(p.min_tokens, max_tokens),
            **{name: getattr(p, name) for name in SAMPLER},
            "top_k": 0 if p.top_k >= self._vocab else p.top_k,
            "eos_ids": () if p.ignore_eos and grammar is None else self._eos_ids,
            "grammar": self._bounded(p, grammar, prompt),
            "stop_ids": tuple(p.stop_token_ids or ()),
            "logprobs": -1 if p.logprobs is None else self._logprobs("logprobs", p.logprobs),
            "logit_bias": tuple(sorted((p.logit_bias or {}).items())),
            "allowed_ids": tuple(sorted(set(p.allowed_token_ids or ()))),
            "bad_words": self._bad_words(tuple(p.bad_words or ())),
            "extra": extra(p.extra_args or {}),
        }

    def _bounded(self, p: SamplingParams, grammar: Source | None, prompt: Sequence[int]) -> Source | None:
        """The grammar, and a bound on reasoning."""
        if p.thinking_token_budget is None:
            return grammar
        if self._marks is None:
            raise RequestError(thinking.NONE, thinking.FIELD)
        budget = self._marks.budget(p.thinking_token_budget, prompt)
        return Source(text="", budget=budget) if grammar is None else msgspec.structs.replace(grammar, budget=budget)

    def _grammar(self, p: SamplingParams) -> Source | None:
        if p.structured_outputs is None:
            return None
        if self._structured is None:
            name = "structured_outputs"
            raise RequestError(
                f"{name}: this engine runs without a tokenizer, so it can keep to no grammar; leave it out", name
            )
        self._check_ids("free_until", p.structured_outputs.free_until or ())
        return self._structured.source(p.structured_outputs, p.n)

    def _logprobs(self, param: str, asked: int) -> int:
        """How many of the top tokens. -1 asks for the whole vocabulary."""
        count = self._vocab if asked == -1 else asked
        if count > self._max_logprobs:
            raise RequestError(
                f"{param}: {asked if asked >= 0 else 'the whole vocabulary'} is more than this engine's limit of "
                f"{self._max_logprobs}; ask for fewer or start it with a larger --max-logprobs",
                param,
            )
        return min(count, self._vocab)

    def _read_bad_words(self, words: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        """Each word as it begins a text and as it follows a space. The second form is kept only where it differs by
        its first token alone. A longer one would begin with a bare space, and ban the word's tail after any space."""
        if words and self._tokenizer is None:
            raise RequestError("bad_words: this engine runs without a tokenizer; use logit_bias", "bad_words")
        out: dict[tuple[int, ...], None] = {}
        bares = self._encode_all([word.lstrip() for word in words])
        spaceds = self._encode_all([" " + word.lstrip() for word in words])
        for word, bare, spaced in zip(words, bares, spaceds, strict=True):
            if not bare:
                raise RequestError(f"bad_words: {word!r} is no token at all", "bad_words")
            self._check_ids("bad_words", bare)
            out[bare] = None
            if len(spaced) == len(bare) and spaced[0] != bare[0]:
                self._check_ids("bad_words", spaced)
                out[spaced] = None
        return tuple(out)


def _with_media(prompt: Any) -> tuple[Any, Sequence[Medium]]:
    """A prompt, and the media that were read for it."""
    if not isinstance(prompt, Mapping):
        return prompt, ()
    if NAME in prompt:
        raise RequestError(f"prompt: {NAME} is not supported by this model, which takes text alone; leave it out", "prompt")
    return {k: v for k, v in prompt.items() if k != MEDIA}, prompt.get(MEDIA) or ()


def extra(args: Mapping[str, Any]) -> dict[str, Any]:
    """extra_args as the features that take them checked them."""
    takes = {name: check for f in all_features() for name, check in f.arguments.items()} if args else {}
    out = {}
    for name, value in args.items():
        if name not in takes:
            known = ", ".join(sorted(takes)) or "none: no installed package adds any"
            raise RequestError(f"extra_args: {name!r:.80} is not known; this engine takes {known}", "extra_args")
        try:
            out[name] = takes[name](value)
        except ValueError as e:
            raise RequestError(f"extra_args: {name}: {e}", "extra_args") from e
    return out


def _check_priority(priority: Any) -> None:
    if isinstance(priority, bool) or not isinstance(priority, int) or not -(2**31) <= priority < 2**31:
        raise RequestError(f"priority must be a 32-bit integer, not {priority!r}", "priority")


def _salt(salt: Any) -> str:
    if salt is None:
        return ""
    if isinstance(salt, str) and salt.startswith(RESERVED):
        raise RequestError("cache_salt must not begin with a NUL character", "cache_salt")
    if not isinstance(salt, str) or not salt or len(salt) > MAX_SALT:
        raise RequestError(f"cache_salt must be a non-empty string of at most {MAX_SALT} characters", "cache_salt")
    return salt
