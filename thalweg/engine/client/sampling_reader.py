"""Sampling parameters in the engine's form: words and grammars become token ids, and every limit is checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from thalweg.config import EngineConfig
from thalweg.engine.client import thinking
from thalweg.engine.client.grammars import StructuredOutputs
from thalweg.engine.client.prompt_ids import check_ids
from thalweg.engine.client.thinking import ReasoningMarkers
from thalweg.errors import RequestError
from thalweg.features import all_features
from thalweg.grammar.source import GrammarSource
from thalweg.params import SAMPLER, SamplingParams
from thalweg.text.stops import automaton
from thalweg.text.tokenizer import Tokenizer

KEPT_WORDS = 16
"""Lists of bad words kept as tokens: the prompts and choices of a request share theirs."""


class SamplingReader:
    """Reads the parameters of requests to one model."""

    def __init__(
        self, config: EngineConfig, tokenizer: Tokenizer | None, eos_ids: tuple[int, ...],
        structured: StructuredOutputs | None, marks: ReasoningMarkers | None,
    ) -> None:  # fmt: skip
        """Arguments as of `InputProcessor`."""
        model = config.model
        self._tokenizer, self._eos_ids, self._structured, self._marks = tokenizer, eos_ids, structured, marks
        self._max_len, self._vocab = model.max_len, model.vocab
        self._bad_words = lru_cache(KEPT_WORDS)(self._read_bad_words)
        self._max_logprobs = model.vocab if model.max_logprobs == -1 else model.max_logprobs

    def prepare(self, params: SamplingParams) -> None:
        """Read the slow parameters in advance, so that `read` finds the results cached. For a thread. RequestError as there."""
        automaton(tuple(params.stop or ()))
        self._grammar(params)
        self._bad_words(tuple(params.bad_words or ()))

    def read(self, p: SamplingParams, prompt: Sequence[int]) -> dict[str, Any]:
        """The fields of TokenSampling that every choice shares. RequestError names the field."""
        if p.stop and self._tokenizer is None:
            raise RequestError("stop: this engine runs without a tokenizer; use stop_token_ids", "stop")
        for name, ids in (
            ("stop_token_ids", p.stop_token_ids),
            ("allowed_token_ids", p.allowed_token_ids),
            ("logit_bias", list(p.logit_bias or ())),
        ):
            check_ids(name, ids or [], self._vocab)
        grammar = self._grammar(p)
        room = self._max_len - len(prompt)
        max_tokens = room if p.max_tokens is None else min(p.max_tokens, room)
        return {
            "max_tokens": max_tokens,
            # With a grammar the text ends where the grammar allows nothing else.
            "min_tokens": max_tokens if grammar is not None and p.ignore_eos else min(p.min_tokens, max_tokens),
            **{name: getattr(p, name) for name in SAMPLER},
            "top_k": 0 if p.top_k >= self._vocab else p.top_k,
            "eos_ids": () if p.ignore_eos and grammar is None else self._eos_ids,
            "grammar": self._add_thinking_budget(p, grammar, prompt),
            "stop_ids": tuple(p.stop_token_ids or ()),
            "logprobs": -1 if p.logprobs is None else self.logprobs("logprobs", p.logprobs),
            "logit_bias": tuple(sorted((p.logit_bias or {}).items())),
            "allowed_ids": tuple(sorted(set(p.allowed_token_ids or ()))),
            "bad_words": self._bad_words(tuple(p.bad_words or ())),
            "drafts": not p.disable_spec_decode,
            "extra": extra(p.extra_args or {}),
        }

    def _add_thinking_budget(
        self, p: SamplingParams, grammar: GrammarSource | None, prompt: Sequence[int]
    ) -> GrammarSource | None:
        """The grammar, and a bound on reasoning."""
        if p.thinking_token_budget is None:
            return grammar
        if self._marks is None:
            raise RequestError(thinking.NONE, thinking.FIELD)
        budget = self._marks.budget(p.thinking_token_budget, prompt)
        return GrammarSource(text="", budget=budget) if grammar is None else msgspec.structs.replace(grammar, budget=budget)

    def _grammar(self, p: SamplingParams) -> GrammarSource | None:
        if p.structured_outputs is None:
            return None
        if self._structured is None:
            name = "structured_outputs"
            raise RequestError(f"{name}: this engine runs without a tokenizer, so it can keep to no grammar; omit it", name)
        check_ids("free_until", p.structured_outputs.free_until or (), self._vocab)
        return self._structured.source(p.structured_outputs, p.n)

    def logprobs(self, param: str, requested: int) -> int:
        """The number of top tokens. -1: the whole vocabulary."""
        count = self._vocab if requested == -1 else requested
        if count > self._max_logprobs:
            raise RequestError(
                f"{param}: {requested if requested >= 0 else 'the whole vocabulary'} is more than this engine's limit of "
                f"{self._max_logprobs}; ask for fewer or start it with a larger --max-logprobs",
                param,
            )
        return min(count, self._vocab)

    def _read_bad_words(self, words: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        """Each word at the start of a text and after a space. The second form is kept only where it has as many tokens, with
        another first one. A longer one would begin with a bare space, and ban the word's tail after any space."""
        if words and self._tokenizer is None:
            raise RequestError("bad_words: this engine runs without a tokenizer; use logit_bias", "bad_words")
        out: dict[tuple[int, ...], None] = {}
        bares = self._encode_all([word.lstrip() for word in words])
        spaceds = self._encode_all([" " + word.lstrip() for word in words])
        for word, bare, spaced in zip(words, bares, spaceds, strict=True):
            if not bare:
                raise RequestError(f"bad_words: {word!r} encodes to no tokens", "bad_words")
            check_ids("bad_words", bare, self._vocab)
            out[bare] = None
            if len(spaced) == len(bare) and spaced[0] != bare[0]:
                check_ids("bad_words", spaced, self._vocab)
                out[spaced] = None
        return tuple(out)

    def _encode_all(self, words: Sequence[str]) -> list[tuple[int, ...]]:
        """In one call, which leaves the interpreter to other threads."""
        assert self._tokenizer is not None or not words
        try:
            return [tuple(ids) for ids in self._tokenizer.encode_batch(words, False)] if self._tokenizer and words else []
        except RequestError as e:
            raise RequestError(f"bad_words: {e}", "bad_words") from e


def extra(args: Mapping[str, Any]) -> dict[str, Any]:
    """extra_args, as checked by the features that read them."""
    takes = {name: check for f in all_features() for name, check in f.arguments.items()} if args else {}
    out = {}
    for name, value in args.items():
        if name not in takes:
            known = ", ".join(sorted(takes)) or "none: no installed package adds any"
            raise RequestError(f"extra_args: {name!r:.80} is not known; supported: {known}", "extra_args")
        try:
            out[name] = takes[name](value)
        except ValueError as e:
            raise RequestError(f"extra_args: {name}: {e}", "extra_args") from e
    return out
