"""The tokens around a model's reasoning, for its token budget (`thinking_token_budget`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from thalweg.errors import ConfigError, RequestError
from thalweg.grammar.source import Budget
from thalweg.text.tokenizer import Tokenizer
from thalweg.turns.format import Reasoning
from thalweg.turns.table import REASONING

NAME, FIELD = "reasoning_config", "thinking_token_budget"
KEYS = ("reasoning_parser", "reasoning_start_str", "reasoning_end_str")
NONE = (
    f"{FIELD}: nothing says how this model's reasoning begins and ends: name it with --reasoning-config "
    '{"reasoning_start_str": "<think>", "reasoning_end_str": "</think>"}, or omit it'
)


@dataclass(frozen=True, slots=True)
class ReasoningMarkers:
    """Token ids, at least one of each."""

    open: tuple[int, ...]
    close: tuple[int, ...]
    """The tokens with which the model ends reasoning."""
    forced: tuple[int, ...]
    """The tokens that end it when the budget is used up."""

    def budget(self, most: int, prompt: Sequence[int]) -> Budget:
        """The budget of an answer to this prompt, which may have begun to reason."""
        opened, closed = _last(prompt, self.open), _last(prompt, self.close)
        begun = len(prompt) - opened if opened > closed else -1
        return Budget(open=self.open, close=self.close, forced=self.forced, most=most, begun=begun)


def marks(markers: Mapping[str, Any] | None, tokenizer: Tokenizer | None) -> ReasoningMarkers | None:
    """The markers of --reasoning-config, else <think> and </think> where they are tokens. None: unknown. ConfigError names
    the key."""
    markers = markers or {}
    if unknown := sorted(set(markers) - set(KEYS)):
        raise ConfigError(f"{NAME}: {unknown[0]!r:.60} is not known; known are {', '.join(KEYS)}")
    if wrong := [k for k, v in markers.items() if not isinstance(v, str)]:
        raise ConfigError(f"{NAME}: {wrong[0]} must be text, not {markers[wrong[0]]!r:.60}")
    if tokenizer is None:
        if markers:
            raise ConfigError(f"{NAME}: there is no tokenizer (--skip-tokenizer-init), which must read its texts; omit it")
        return None
    parser = markers.get("reasoning_parser") or ""
    if parser and parser not in REASONING:
        raise ConfigError(f"{NAME}: reasoning_parser: unknown parser {parser!r:.60}; supported: {', '.join(sorted(REASONING))}")
    row = REASONING[parser] if parser else Reasoning()
    first, last = markers.get("reasoning_start_str") or row.open, markers.get("reasoning_end_str") or row.close
    if not first or not last:
        raise ConfigError(f"{NAME}: reasoning_parser: {parser} has headers, and no texts that begin and end reasoning")
    try:
        opened, forced, close = (tuple(tokenizer.encode(text, False)) for text in (first, last, row.close or last))
    except RequestError as e:  # a vocabulary that has not even these letters
        if not markers:
            return None
        raise ConfigError(f"{NAME}: {e}") from None
    if not markers and (len(opened) != 1 or len(forced) != 1):
        return None  # the model is not known to use these
    if not opened or not forced:
        raise ConfigError(f"{NAME}: {first!r:.60} and {last!r:.60} must each be a token at least")
    ends = close if close and forced[-len(close) :] == close else forced
    return ReasoningMarkers(opened, ends, forced)


def _last(ids: Sequence[int], of: tuple[int, ...]) -> int:
    """The position behind the last `of` among `ids`. -1: there is none."""
    n = len(of)
    return next((i + n for i in range(len(ids) - n, -1, -1) if tuple(ids[i : i + n]) == of), -1)
