"""Log-probabilities in the two shapes of the copied API. -inf, which JSON lacks, is written -9999."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from thalweg.outputs import Logprob, PositionLogprobs

FLOOR = -9999.0


def number(logprob: float) -> float:
    return logprob if logprob > FLOOR else FLOOR


def token_text(token: int, entry: Logprob, as_ids: bool) -> str:
    return f"token_id:{token}" if as_ids else entry.decoded_token or ""


def first_entry(position: PositionLogprobs) -> tuple[int, Logprob]:
    return next(iter(position.items()))


def chat(
    positions: Sequence[PositionLogprobs], top: int, as_ids: bool, bytes_of: Callable[[int], bytes] | None
) -> dict[str, Any]:
    """ChatCompletionLogProbs: per token its own entry and the `top` most likely ones (-1: all)."""

    def entry_of(token: int, entry: Logprob) -> dict[str, Any]:
        # The exact bytes, not those of the text: a token may hold half a character.
        raw = list(bytes_of(token)) if bytes_of else None
        return {"token": token_text(token, entry, as_ids), "logprob": number(entry.logprob), "bytes": raw}

    content = []
    for position in positions:
        token, entry = first_entry(position)
        best: Iterable[tuple[int, Logprob]] = sorted(position.items(), key=lambda kv: -kv[1].logprob) if top else ()
        if top > 0:
            best = [(t, e) for t, e in best if e.rank is None or e.rank <= top][:top]
        content.append(entry_of(token, entry) | {"top_logprobs": [entry_of(t, e) for t, e in best]})
    return {"content": content, "refusal": None}


def completion(positions: Sequence[PositionLogprobs | None], first: str, offset: int, as_ids: bool) -> dict[str, Any]:
    """CompletionLogProbs. A None position has no number: it is the first prompt token, with the text `first`. `offset`:
    characters before the first token."""
    tokens: list[str] = []
    values: list[float | None] = []
    tops: list[dict[str, float] | None] = []
    offsets: list[int] = []
    for position in positions:
        if position is None:
            text, value, top = first, None, None
        else:
            token, entry = first_entry(position)
            text, value = token_text(token, entry, as_ids), number(entry.logprob)
            top = {token_text(t, e, as_ids): number(e.logprob) for t, e in position.items()}
        tokens.append(text)
        values.append(value)
        tops.append(top)
        offsets.append(offset)
        offset += len(text)
    return {"tokens": tokens, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets}


def prompt(positions: Sequence[PositionLogprobs | None] | None) -> list[dict[str, Any] | None] | None:
    """The `prompt_logprobs` field of replies: per prompt token, id -> details."""
    if positions is None:
        return None
    return [None if p is None else _details(p) for p in positions]


def _details(position: Mapping[int, Logprob]) -> dict[str, Any]:
    return {
        str(t): {"logprob": number(e.logprob), "rank": e.rank, "decoded_token": e.decoded_token} for t, e in position.items()
    }
