"""How many drafts of one request were right, from the rounds that the engine reports (`RequestMetrics.draft_rounds`)."""

from __future__ import annotations

from collections import Counter
from typing import Any


def count_by_position(rounds: bytes) -> tuple[list[int], list[int]]:
    """(drafts, accepted drafts) at each position of a proposal, from the first."""
    drafted, accepted = rounds[::2], rounds[1::2]
    places = range(max(drafted, default=0))
    return [sum(n > place for n in drafted) for place in places], [sum(n > place for n in accepted) for place in places]


def summarise_rounds(rounds: bytes, most: int, detailed: bool) -> dict[str, Any]:
    """The object `metrics.speculative_decoding` of vLLM's answers. most: drafts of a sequence in a step, at most. detailed:
    with the counts of each step."""
    drafted, accepted = rounds[::2], rounds[1::2]
    steps, proposed, right = len(drafted), sum(drafted), sum(accepted)
    seen = Counter(zip(drafted, accepted, strict=True))
    longest = max(most, *drafted, 0)
    found: dict[str, Any] = {
        "mean_acceptance_length": 1 + right / steps if steps else 1.0,
        "draft_acceptance_rate": right / proposed if proposed else 0.0,
        "acceptance_histogram": [accepted.count(j) for j in range(longest + 1)],
        "acceptance_histogram_by_draft_length": {
            str(k): [seen[k, j] for j in range(k + 1)] for k in sorted(set(drafted))
        },
        "num_spec_steps": steps,
        "num_accepted_draft_tokens": right,
        "num_draft_tokens": proposed,
        "num_spec_tokens": most,
    }  # fmt: skip
    return found | ({"per_step_accepted": [*accepted], "per_step_drafted": [*drafted]} if detailed else {})
