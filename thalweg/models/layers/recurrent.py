"""How recurrent layers go on from the state of a sequence: their ops read it from one block and write it to another.

A step that verifies drafts runs them twice. Layers write the states after all tokens to spare blocks, as the number of accepted
drafts is not known yet. When it is known, `settle` runs the same ops over the accepted tokens only, from the old states to
the live blocks. A state has the same bits for any chunking of its tokens, so the text equals that of steps without drafts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from thalweg.hal.step import Array, StepBatch
from thalweg.models.flow import Flow, MixerRef

Run = Callable[..., tuple[Array, Array]]
"""(held, table, context, query, last_row, token_seq) -> (out, held), as ops over recurrent state have them."""


@dataclass(frozen=True, slots=True)
class Replay:
    """An op of a layer with the inputs of this step."""

    place: MixerRef
    part: int
    """Which array of the layer's cache it goes on from."""
    run: Run


def advance(flow: Flow, place: MixerRef, part: int, run: Run) -> Array:
    """The output of an op for the tokens of a step. The new cache replaces the old one."""
    batch, caches = flow.batch, flow.caches[place.layer]
    table = batch.block_tables[place.group]
    if flow.replays is not None:
        flow.replays.append(Replay(place, part, run))
        table = table[:, 0::2]  # from the state to the spare block
    out, held = run(caches[part], table, batch.context, batch.query, batch.last_row, batch.token_seq)
    flow.caches[place.layer] = (*caches[:part], held, *caches[part + 1 :])
    return out


def settle(replays: Sequence[Replay], caches: list[Array], batch: StepBatch, kept: Array) -> list[Array]:
    """The caches after the first `kept` tokens i32[S] of every sequence in this step, each at least 1.

    Every sequence becomes two: its accepted tokens, and the others, which go from no state to the scratch block."""
    seq, none = batch.token_seq, torch.zeros_like(batch.context)
    first = batch.last_row + 1 - batch.query
    rows = torch.arange(seq.shape[0], dtype=torch.int32, device=seq.device)
    query = torch.stack([kept, batch.query - kept], 1).flatten()
    context = torch.stack([batch.context, none], 1).flatten()
    last_row = (query.cumsum(0) - 1).to(torch.int32)
    beyond = rows - first.index_select(0, seq) >= kept.index_select(0, seq)
    token_seq = 2 * seq + beyond.to(torch.int32)
    caches, tables = list(caches), dict[int, Array]()
    for each in replays:
        place = each.place
        if place.group not in tables:
            table = batch.block_tables[place.group][:, :2]
            tables[place.group] = torch.stack([table, torch.zeros_like(table)], 1).flatten(0, 1)
        parts = caches[place.layer]
        _, held = each.run(parts[each.part], tables[place.group], context, query, last_row, token_seq)
        caches[place.layer] = (*parts[: each.part], held, *parts[each.part + 1 :])
    return caches
