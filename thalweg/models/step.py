"""The step: tokens in, sampled tokens out, state threaded through. A pure function of arrays, the same on every device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from thalweg.hal import ops
from thalweg.hal.device import Device
from thalweg.hal.kv import KVLayout
from thalweg.hal.op import Binder
from thalweg.hal.parts.codes import FrameCodes
from thalweg.hal.parts.drafts import Drafts
from thalweg.hal.parts.each_token import EachToken
from thalweg.hal.parts.history import History
from thalweg.hal.parts.proposing import Proposing
from thalweg.hal.parts.scores import Scores
from thalweg.hal.step import Array, Logprobs, Params, State, Step, StepBatch, StepResult
from thalweg.models.adapters import AdapterRows, Held, allocate
from thalweg.models.build import Model
from thalweg.models.drafts.taps import SAMPLED
from thalweg.models.heads.pooling import pooling_result
from thalweg.models.layers.depth import CODES, SPOKEN, PositionEmbedder
from thalweg.models.layers.recurrent import Replay, settle
from thalweg.models.proposer import KEY, Proposer
from thalweg.models.sampler import Sampler

STAGE = "stage"
"""Key of the state of a pipeline stage: the arrays "enter" and "leave", [parts, tokens, hidden]."""

SCORE_ROWS = 256
"""Rows of prompt logprobs computed at once: bounds the [rows, vocab] logits, whatever the prompt's length."""


def make_state(
    model: Model, device: Device, *, blocks: Sequence[int], slots: int, max_len: int, proposer: Proposer | None = None,
    tokens: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """{"kv": one cache per mixer, "history": i32[slots, max_len + 1]}: token ids by slot and position; one more than a
    sequence may have, because a step also writes the token it samples. A model that samples none has no history. A cache is a
    tuple of arrays where the layer's layout is one. Where adapters are planned, "adapters" holds them (`models.adapters`).
    `models.proposer.KEY` holds the proposer's state.

    blocks: per KV group. Both counts include scratch (block 0, slot 0). tokens: of the largest step, for pipeline stages, with
    arrays that pass between them under `STAGE`."""
    if len(blocks) != len(model.groups):
        raise ValueError(f"make_state: {len(blocks)} block counts for {len(model.groups)} KV groups")
    state: dict[str, Any] = {"kv": _alloc_caches(device, model.layouts, [blocks[g] for g in model.layer_group])}
    if tokens:
        sides = {"enter": model.parts_before, "leave": model.parts_behind}
        state[STAGE] = {k: device.alloc((n, tokens, model.hidden), model.dtype) for k, n in sides.items() if n}
    if not model.pools:
        state["history"] = device.alloc((slots, max_len + 1), "int32")
    if (depth := getattr(model, "depth", None)) is not None:
        state[CODES] = device.alloc((slots, max_len + 1, depth.spec.books - 1), "int32")
        if isinstance(model.spoken_text, PositionEmbedder):
            state[SPOKEN] = device.alloc((slots, max_len + 1), "int32")
    if model.adapters is not None:
        state["adapters"] = allocate(model.adapters, device, model.dtype)
    if proposer is not None:
        kept = dict(proposer.allocate(device, slots, max_len))
        if proposer.caches:
            at, layouts = zip(*proposer.caches, strict=True)
            kept["kv"] = _alloc_caches(device, layouts, [blocks[g] for g in at])
        if kept:
            state[KEY] = kept
    return state


def _alloc_caches(
    device: Device, layouts: Sequence[KVLayout | tuple[KVLayout, ...]], blocks: Sequence[int]
) -> list[Array | tuple[Array, ...]]:
    """A cache for each layout, of so many blocks. Where there are several layouts, a tuple."""
    parts = [each if isinstance(each, tuple) else (each,) for each in layouts]
    counts = [n for each, n in zip(parts, blocks, strict=True) for _ in each]
    result = iter(device.alloc_caches([part for each in parts for part in each], counts))
    return [tuple(next(result) for _ in each) if isinstance(each, tuple) else next(result) for each in layouts]


def _bind_entry(
    model: Model, binder: Binder, write: Callable[..., Array]
) -> Callable[[StepBatch, Array], tuple[StepBatch, Array]]:
    """(batch, history) -> the batch with known tokens, and the history with these. write: `ops.history_write`."""
    resolve = binder.bind(ops.resolve_tokens)
    enter = binder.offer(ops.enter_tokens, max_len=model.max_len)

    def enter_batch(batch: StepBatch, history: Array) -> tuple[StepBatch, Array]:
        if enter is not None:
            tokens, positions, history = enter(batch.tokens, history, batch.slots, batch.token_seq, batch.positions)
            return replace(batch, positions=positions, tokens=tokens), history
        slots = batch.slots.index_select(0, batch.token_seq)
        positions = batch.positions.clamp(max=model.max_len - 1)  # padding may count on past the longest sequence
        batch = replace(batch, positions=positions, tokens=resolve(batch.tokens, history, slots, positions))
        return batch, write(history, slots, batch.positions, batch.tokens)

    return enter_batch


def make_step(model: Model, binder: Binder, *, logprobs_mode: str, proposer: Proposer | None = None) -> Step:
    """The step function of a model: resolves and records token ids, runs the model, samples, scores prompt tokens. With another
    tail it ends with a vector of each sequence, and of requested tokens. proposer: the tail of steps with the part
    `Proposing`."""
    if getattr(model, "parts_behind", 0):
        return _stage_step(model)
    if model.pools:
        return _pooling_step(model)
    write = binder.bind(ops.history_write)
    enter_batch = _bind_entry(model, binder, write)
    sampler = Sampler(binder, vocab=model.vocab, logprobs_mode=logprobs_mode)
    depth = getattr(model, "depth", None)
    tapped = getattr(model.spec, "states_before", 0) - 1

    def step(params: Params, state: State, batch: StepBatch) -> tuple[State, StepResult]:
        history, seen = state["history"], batch.get(History)
        if seen is not None:
            history = write(history, seen.slot, seen.position, seen.token)
        batch, history = enter_batch(batch, history)
        framed = {} if depth is None else _embed_frames(model, params, state, batch)
        if depth is not None:  # the token that ends a sequence is no code
            batch = replace(batch, tokens=batch.tokens.clamp(max=model.vocab - 1))
        drafts, scores, aligned = batch.get(Drafts), batch.get(Scores), batch.get(EachToken)
        rows = batch.last_row if drafts is None else torch.cat([batch.last_row, drafts.row - 1])
        tail = proposer if batch.get(Proposing) is not None else None
        places = () if tail is None else tail.taps
        taps: dict[int, Any] = dict.fromkeys(place for place in places if place != SAMPLED)
        if aligned is not None and tapped >= 0:
            taps[tapped] = None
        some = (
            scores is None and aligned is None and not batch.uniform and not taps
        )  # of a uniform batch all rows are read, or nearly
        replays: list[Replay] = []
        adapters = state.get("adapters")
        adapted = None if adapters is None else model.head_rows(batch, adapters, rows)
        more = _adapters(state) | _entering_states(state, batch) | framed
        if drafts is not None and model.recurrent:
            more["replays"] = replays
        if taps:
            more["taps"] = taps
        weights: list[Array] = []
        if aligned is not None:
            more["weights"] = weights
        x, kv = model.forward(params, batch, state["kv"], rows if some else None, **more)
        alone = batch.uniform == 1 and drafts is None  # then row i is the only one of sequence i
        last = x if some or alone else x.index_select(0, rows)
        if model.has_argmax and batch.features.plain and adapted is None:
            tokens, values = model.argmax(params, last)
            result, history = sampler.emit(tokens, values, history, batch)
        else:
            result, history = sampler(_logits(model, params, last, adapted), history, batch)
        if depth is not None:
            embedded = model.embed(params, result.tokens[:, 0])
            result, held = depth.finish(params["depth"], result, state, last, embedded, batch, sampler.choose)
            state = {**state, CODES: held}
        if drafts is not None and replays:
            wrong = (drafts.pick >= 0).sum(1) - (result.counts - 1).clamp(min=0)
            kv = settle(replays, kv, batch, (batch.query - wrong).to(torch.int32))
        if scores is not None:
            result = replace(result, score=_score(model, sampler, params, x, batch, scores, adapters))
        if aligned is not None:
            states = taps[tapped].index_select(0, aligned.row).float() if tapped >= 0 else None
            result = replace(result, each=torch.cat(weights, 1).flatten(1) if states is None else states)
        state = {**state, "kv": kv, "history": history}
        if tail is not None:
            read = tuple(last if place == SAMPLED else taps[place] for place in places)
            proposed, state = tail.propose(params, state, batch, read, result.tokens, result.counts)
            result = replace(result, drafts=proposed)
        return state, result

    step.appendable = 0 if model.recurrent else model.max_len  # type: ignore[attr-defined]
    return step


def _embed_frames(model: Model, params: Params, state: State, batch: StepBatch) -> dict[str, Array]:
    """The argument of `Model.forward` of a model whose tokens are frames."""
    depth, text = model.depth, model.spoken_text
    slots = batch.slots.index_select(0, batch.token_seq)
    held, known = state[CODES], batch.get(FrameCodes)
    if known is not None:
        held[known.slot.long(), known.position.long()] = known.codes
    vectors = depth.embed(params["depth"], held[slots.long(), batch.positions.long()])
    if isinstance(text, PositionEmbedder):  # tokens of prompts are no frames
        vectors = torch.where((batch.tokens < depth.spec.codes)[:, None], vectors, 0)
        vectors = vectors + text(params["spoken_text"], text.read(state[SPOKEN], batch))
    return {"added": vectors}


def _pooling_step(model: Model) -> Step:
    def step(params: Params, state: State, batch: StepBatch) -> tuple[State, StepResult]:
        batch = replace(batch, positions=batch.positions.clamp(max=model.max_len - 1))
        rows, wanted = model.pooled_rows(batch), batch.get(EachToken)
        more = _adapters(state)
        entered = _entering_states(state, batch)
        x, kv = model.forward(params, batch, state["kv"], rows if wanted is None else None, **more, **entered)
        if wanted is None:
            return {**state, "kv": kv}, pooling_result(model.pool(params, x, batch, **more), batch)
        vectors = model.pool(params, x if rows is None else x.index_select(0, rows), batch, **more)
        slots = {"slots": model.sequence_slots(batch, row=wanted.row, **more)} if more else {}
        each = model.each(params, x, wanted.row, **slots)
        return {**state, "kv": kv}, pooling_result(vectors, batch, wanted.row, each)

    return step


def _stage_step(model: Model) -> Step:
    """Of a pipeline stage before the last: fills "leave" of its state. The result has nothing of the step."""

    def step(params: Params, state: State, batch: StepBatch) -> tuple[State, StepResult]:
        batch = replace(batch, positions=batch.positions.clamp(max=model.max_len - 1), tokens=batch.tokens.clamp(min=0))
        x, kv = model.forward(params, batch, state["kv"], **_entering_states(state, batch))
        state[STAGE]["leave"][:, : x.shape[1]].copy_(x)
        return {**state, "kv": kv}, StepResult(batch.slots[:, None], batch.query)

    return step


def _entering_states(state: State, batch: StepBatch) -> dict[str, Any]:
    """The argument of `Model.forward` of a stage behind the first. A copy, as layers may write over their input."""
    held = state.get(STAGE, {}).get("enter")
    return {} if held is None else {"entered": held[:, : batch.tokens.shape[0]].clone()}


def _adapters(state: State) -> dict[str, Any]:
    """The argument of a model's methods that models without adapters lack."""
    return {"adapters": state["adapters"]} if "adapters" in state else {}


def _logits(model: Model, params: Params, x: Array, adapted: AdapterRows | None) -> Array:
    logits: Array = model.logits(params, x) if adapted is None else model.logits(params, x, adapted)
    return logits


def _score(
    model: Model, sampler: Sampler, params: Params, x: Array, batch: StepBatch, scores: Scores, adapters: Held | None
) -> Logprobs:
    """Logprobs of known tokens, in chunks of SCORE_ROWS rows."""
    parts = []
    for at in range(0, scores.row.shape[0], SCORE_ROWS):
        rows, targets = (a[at : at + SCORE_ROWS] for a in (scores.row, scores.target))
        adapted = None if adapters is None else model.head_rows(batch, adapters, rows)
        logits = _logits(model, params, x.index_select(0, rows), adapted)
        parts.append(sampler.score(logits, targets, scores.level))
    return Logprobs(*(torch.cat([getattr(p, f) for p in parts]) for f in ("tokens", "values", "ranks")))
