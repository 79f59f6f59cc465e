"""Where a drafter reads the target's hidden states. Checkpoints count layers in two ways, which this module turns into one.

A place is the layer after which a hidden state is read, before any final norm, as in `Decoder.forward`. A wrong place changes
no text: it only shows as low acceptance.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from thalweg.errors import CheckpointError

EMBEDDED = -2
"""The place before the first layer."""
FINAL = -1
"""The place after the last norm."""
SAMPLED = -3
"""The same of the sampled rows only: one of each sequence, then one before each draft. A step computes them anyway."""


def places_before(ids: Any, layers: int, where: str) -> tuple[int, ...]:
    """Places of ids that count "before layer i", as those of EAGLE-3 and `speculators` do. The id `layers` is the place after
    the last layer. layers: of the target. where: the field, for errors. CheckpointError."""
    checked = _check(ids, layers, where)
    return tuple(EMBEDDED if i == 0 else i - 1 for i in checked)


def places_after(ids: Any, layers: int, where: str) -> tuple[int, ...]:
    """The same of ids that count "after layer i", as those of DFlash do."""
    return _check(ids, layers - 1, where)


def default_places(layers: int) -> tuple[int, ...]:
    """Of drafters that name none: an early, a middle and a late place."""
    return places_before([2, layers // 2, layers - 3], layers, "eagle_aux_hidden_state_layer_ids (default)")


def describe_places(places: Sequence[int]) -> str:
    """For messages."""
    words = {EMBEDDED: "the embedding", FINAL: "the last norm", SAMPLED: "the last norm"}
    return ", ".join(words.get(p, f"layer {p}") for p in places)


def _check(ids: Any, most: int, where: str) -> tuple[int, ...]:
    good = isinstance(ids, Sequence) and ids and all(type(i) is int and 0 <= i <= most for i in ids)
    if not good or len(set(ids)) < len(ids):
        raise CheckpointError(
            f"config.json: {where}: must be different layers of the target, from 0 to {most}, not {ids!r:.80}"
        )
    return tuple(ids)
