"""Beam search over the engine: each round asks for the most likely next tokens of every beam, all prompts together."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from thalweg.errors import RequestError
from thalweg.lora import LoRARequest
from thalweg.offline.batches import Batches, UseTqdm, open_bar
from thalweg.offline.prompts import Prompt, as_list, per_prompt
from thalweg.offline.sharing import in_turn
from thalweg.outputs import BeamSearchOutput, BeamSearchSequence, PositionLogprobs, RequestOutput
from thalweg.params import BeamSearchParams, SamplingParams


@dataclass
class _Search:
    """The beams of one prompt."""

    prompt: Any
    text: str | None
    ids: list[int]
    live: list[BeamSearchSequence]
    done: list[BeamSearchSequence] = field(default_factory=list)


class BeamMethods(Batches):
    """The part of `LLM` that searches."""

    @in_turn
    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: BeamSearchParams,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        use_tqdm: UseTqdm = False,
        concurrency_limit: int | None = None,
    ) -> list[BeamSearchOutput]:
        """The `beam_width` best continuations of every prompt, best first, by the sum of log-probabilities over the number of
        tokens (prompt included, end token not) to the power of length_penalty. `tokens` and `text` hold the prompt too.
        lora_request: the adapter of all prompts, or a list with one (or None) for each. concurrency_limit: prompts searched
        at once. RequestError, naming the field, before anything runs."""
        if not isinstance(params, BeamSearchParams):
            raise RequestError(f"params must be BeamSearchParams, not {type(params).__name__}", "params")
        if concurrency_limit is not None and concurrency_limit < 1:
            raise RequestError(f"concurrency_limit must be at least 1, not {concurrency_limit}", "concurrency_limit")
        items = as_list(prompts)
        adapters = per_prompt("lora_request", lora_request, len(items), lambda: None)
        searches = [self._search(p, params, adapter) for p, adapter in zip(items, adapters, strict=True)]
        at_once = concurrency_limit or max(1, len(searches))
        with contextlib.closing(open_bar(use_tqdm, len(searches), "beam searches")) as bar:
            for first in range(0, len(searches), at_once):
                self._extend(searches[first : first + at_once], params)
                bar.update(len(searches[first : first + at_once]))
        return [self._best(s, params) for s in searches]

    def _search(self, prompt: Any, params: BeamSearchParams, adapter: LoRARequest | None) -> _Search:
        one = SamplingParams(max_tokens=1, logprobs=2 * params.beam_width, temperature=params.temperature, detokenize=False)
        if self.llm_engine.config.model.speech is not None or self.llm_engine.config.model.source is not None:
            raise RequestError("model: beam search is not supported for models with an encoder; use generate()", "model")
        if self.llm_engine.config.model.prefix_lm:
            raise RequestError("model: beam search is not supported for prefix LMs; use generate()", "model")
        checked = self.llm_engine.prepare(str(next(self._ids)), prompt, one, lora_request=adapter)
        if isinstance(prompt, dict) and "prompt_embeds" in prompt:
            raise RequestError("prompt_embeds: beams are continued by token ids; send text or ids", "prompt_embeds")
        ids = list(checked.prompt_ids)
        longest = self.llm_engine.config.model.max_len
        if len(ids) + params.max_tokens > longest:
            raise RequestError(
                f"max_tokens: {len(ids)} tokens of prompt and {params.max_tokens} more exceed the context of {longest}",
                "max_tokens",
            )
        return _Search(prompt, checked.prompt, ids, [BeamSearchSequence(prompt, ids, [], adapter)])

    def _extend(self, searches: Sequence[_Search], params: BeamSearchParams) -> None:
        """Let the beams of these prompts grow to their ends."""
        ends = frozenset() if params.ignore_eos else frozenset(self.llm_engine.frontend.eos_ids)
        for _ in range(params.max_tokens):
            beams = [(s, beam) for s in searches for beam in s.live]
            if not beams:
                return
            nexts = self._next([beam for _, beam in beams], params)
            grown: dict[int, list[BeamSearchSequence]] = {id(s): [] for s in searches}
            for (search, beam), tokens in zip(beams, nexts, strict=True):
                # The argmax is reported in addition to the top tokens, and is the first of those.
                for token, logprob in itertools.islice(tokens.items(), 2 * params.beam_width):
                    total, logprobs = beam.cum_logprob + logprob.logprob, [*beam.logprobs, tokens]
                    if token not in ends:
                        more = BeamSearchSequence(beam.orig_prompt, [*beam.tokens, token], logprobs, beam.lora_request, total)
                        grown[id(search)].append(more)
                        continue
                    ids = [*beam.tokens, token] if params.include_stop_str_in_output else beam.tokens
                    search.done.append(
                        BeamSearchSequence(
                            beam.orig_prompt, ids, logprobs, beam.lora_request, total, finish_reason="stop", stop_reason=token
                        )
                    )
            for search in searches:
                search.live = _top(grown[id(search)], ends, params)

    def _next(self, beams: Sequence[BeamSearchSequence], params: BeamSearchParams) -> list[PositionLogprobs]:
        """The most likely next tokens of every beam."""
        one = SamplingParams(
            max_tokens=1, logprobs=2 * params.beam_width, temperature=params.temperature, detokenize=False, ignore_eos=True
        )
        prompts = [{"prompt_token_ids": b.tokens} for b in beams]
        adapters = [_without_reload(b.lora_request) for b in beams]
        return [_sort_logprobs(o) for o in self._run(self._prepare(prompts, [one] * len(prompts), lora_request=adapters))]

    def _best(self, search: _Search, params: BeamSearchParams) -> BeamSearchOutput:
        ends = frozenset() if params.ignore_eos else frozenset(self.llm_engine.frontend.eos_ids)
        for beam in search.live:
            beam.finish_reason = "length"
        best = _top([*search.done, *search.live], ends, params)
        tokenizer = self.llm_engine.frontend.tokenizer
        for beam in best:
            beam.text = tokenizer.decode(beam.tokens, False) if tokenizer is not None else None
        return BeamSearchOutput(best)


def _without_reload(adapter: LoRARequest | None) -> LoRARequest | None:
    """The adapter as the search found it: its files are not read again for each token."""
    return adapter and replace(adapter, load_inplace=False)


def _sort_logprobs(output: RequestOutput) -> PositionLogprobs:
    if output.outputs[0].finish_reason == "error":
        raise RequestError(output.error or "the engine could not finish this request")
    found = output.outputs[0].logprobs
    assert found is not None, "asked for"
    # A token that was drawn stands first, wherever it ranks.
    return dict(sorted(found[0].items(), key=lambda item: -item[1].logprob))


def _top(beams: list[BeamSearchSequence], ends: frozenset[int], params: BeamSearchParams) -> list[BeamSearchSequence]:
    return sorted(beams, key=lambda b: score(b, ends, params.length_penalty), reverse=True)[: params.beam_width]


def score(beam: BeamSearchSequence, ends: frozenset[int], length_penalty: float) -> float:
    """The score that ranks beams."""
    length = len(beam.tokens) - (beam.tokens[-1] in ends)
    return float(beam.cum_logprob / max(1, length) ** length_penalty)
