"""A step as this device runs it: staged in, run as it is or replayed as a graph, staged out; never waited for.

The state lives in the same memory for good. What a step returns that is not that memory is copied back into it, so every
graph and every eager step, in whatever order they run, read and write one state.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg.backends.torch_gpu.runtime import Event, Runtime, Work
from thalweg.backends.torch_gpu.staging import Inbox, Manifest, Outbox, Tables, flatten, read, room, views
from thalweg.hal.step import (
    Features,
    Layout,
    Params,
    State,
    StateBox,
    Step,
    StepBatch,
    StepResult,
    StepShape,
    lay_out,
    statics,
    unpack,
)

logger = logging.getLogger(__name__)

LAYOUTS = 8
"""Graphs one executable captures at most: one per layout of its batches (masks, biases). Further layouts run eagerly."""


@dataclass(slots=True)
class _Outcome:
    """Filled in when the step runs, which on a GPU is during the launch."""

    packed: Tensor | None = None
    manifest: Manifest | None = None
    host: Tensor | None = None
    error: BaseException | None = None


class Launched:
    """A step on its way. Keeps the device's copy of the result until the host's has arrived."""

    def __init__(self, outcome: _Outcome, arrived: Event, outbox: Outbox) -> None:
        self._outcome, self._arrived, self._outbox = outcome, arrived, outbox
        self._read = False

    def ready(self) -> bool:
        return self._arrived.query()

    def result(self) -> StepResult:
        if self._read:
            raise RuntimeError("Pending.result() was called twice")
        self._read = True
        self._arrived.synchronize()
        o = self._outcome
        if o.error is not None:
            raise o.error
        assert o.host is not None
        assert o.manifest is not None
        result: StepResult = read(o.host.numpy(), o.manifest)
        self._outbox.give(o.host)
        o.packed = o.host = None
        return result


@dataclass(frozen=True, slots=True)
class _Captured:
    buffer: Tensor
    """Where the batch must lie."""
    packed: Tensor
    """Where the result will lie, until the next replay."""
    manifest: Manifest
    replay: Work


@dataclass(slots=True)
class Lane:
    """What all executables of a device share."""

    runtime: Runtime
    inbox: Inbox
    outbox: Outbox
    buffer: Tensor
    """The batch of an eager step."""
    tables: Tables
    views: dict[Layout, dict[str, Tensor]] = field(default_factory=dict)
    """Of `buffer`, by layout; a few."""

    def place(self, layout: Layout, n: int) -> dict[str, Tensor]:
        """Views of the shared buffer, which grows."""
        if self.buffer.numel() < n:
            self.buffer = torch.empty(room(n), dtype=torch.uint8, device=self.runtime.device)
            self.views.clear()
        if layout not in self.views:
            if len(self.views) >= 64:
                self.views.clear()
            self.views[layout] = views(self.buffer, layout)
        return self.views[layout]


class GpuExecutable:
    """shape: pad-to bucket or None. features: what it is compiled for; None = whatever each batch asks. capture: a layout
    that is met a second time is captured, and replayed from then on."""

    def __init__(
        self, lane: Lane, step: Step, params: Params, state: StateBox, shape: StepShape | None, features: Features | None,
        capture: bool,
    ) -> None:  # fmt: skip
        self._lane, self._step, self._params, self._state = lane, step, params, state
        self._shape, self._features, self._capture = shape, features, capture
        self._graphs: dict[Any, _Captured | None] = {}
        """By layout and statics; None = met once."""

    def __call__(self, batch: StepBatch) -> Launched:
        if self._features is not None:
            batch = replace(batch, features=self._features)
        self._lane.tables.send(batch)
        if not self._capture:
            return self._eager(batch)
        batch = even(batch)
        layout, n = lay_out(batch)
        key = (layout, statics(batch))
        if key not in self._graphs:
            if len(self._graphs) < LAYOUTS:
                self._graphs[key] = None
            return self._eager(batch)
        graph = self._graphs[key]
        if graph is None:
            try:
                graph = self._graphs[key] = self._record(batch, layout, n)
            except RuntimeError as e:
                self._capture = False
                logger.warning("%s runs without a graph, more slowly: %s", self._shape, e)
                return self._eager(batch)
        return self._replay(graph, batch, layout, n)

    def _eager(self, batch: StepBatch) -> Launched:
        lane, outcome = self._lane, _Outcome()
        layout, n = lay_out(batch)
        arrays = lane.place(layout, n)
        buffer = lane.buffer
        lane.inbox.send(batch, layout, n, lambda: buffer)

        def work() -> None:
            try:
                with torch.inference_mode():
                    outcome.packed, outcome.manifest = self._once(batch, arrays)
            except Exception as e:
                outcome.error = e

        lane.runtime.compute.run(work)
        return self._fetch(outcome)

    def _once(self, batch: StepBatch, arrays: Mapping[str, Tensor]) -> tuple[Tensor, Manifest]:
        """The step on device arrays; its packed result, which is packed before the state moves, as it may be part of it."""
        state, result = self._step(self._params, self._state.value, self._lane.tables.placed(unpack(batch, arrays)))
        packed = flatten(result)
        settle(self._state.value, state)
        return packed

    def _record(self, batch: StepBatch, layout: Layout, n: int) -> _Captured:
        """The batch is in place while it is recorded, and replayed at once: recording changes nothing."""
        lane = self._lane
        buffer = torch.empty(n, dtype=torch.uint8, device=lane.runtime.device)
        arrays = views(buffer, layout)
        lane.inbox.send(batch, layout, n, lambda: buffer)
        made: list[tuple[Tensor, Manifest]] = []

        def work() -> None:
            with torch.inference_mode():
                made.append(self._once(batch, arrays))

        replay = lane.runtime.capture(work)
        return _Captured(buffer, *made[0], replay)

    def _replay(self, graph: _Captured, batch: StepBatch, layout: Layout, n: int) -> Launched:
        lane, outcome = self._lane, _Outcome(manifest=graph.manifest)
        lane.inbox.send(batch, layout, n, lambda: graph.buffer)

        def work() -> None:
            try:
                with torch.inference_mode():
                    graph.replay()
                    outcome.packed = graph.packed.clone()  # the next replay writes there
            except Exception as e:
                outcome.error = e

        lane.runtime.compute.run(work)
        return self._fetch(outcome)

    def _fetch(self, outcome: _Outcome) -> Launched:
        """The result to the host, beside whatever computes next."""
        lane = self._lane
        lane.runtime.copies.wait(lane.runtime.compute.record())

        def work() -> None:
            if outcome.packed is not None:
                n = outcome.packed.numel()
                outcome.host = lane.outbox.take(n)
                outcome.host[:n].copy_(outcome.packed, non_blocking=True)

        lane.runtime.copies.run(work)
        return Launched(outcome, lane.runtime.copies.record(), lane.outbox)


def even(batch: StepBatch) -> StepBatch:
    """The lists of biases and bad words padded, with entries that change nothing, to few lengths: so that batches which
    differ in them only share a graph."""
    if batch.bias_row.shape[0]:
        more = _more(batch.bias_row.shape[0])
        batch = replace(
            batch,
            bias_row=np.pad(batch.bias_row, (0, more)),
            bias_token=np.pad(batch.bias_token, (0, more)),
            bias_value=np.pad(batch.bias_value, (0, more)),
        )
    if batch.bad_row.shape[0]:
        words, length = batch.bad_words.shape
        rows, columns = _more(words), _more(length, 4)
        padded = np.pad(batch.bad_words, ((0, rows), (columns, 0)), constant_values=-1)
        batch = replace(batch, bad_row=np.pad(batch.bad_row, (0, rows)), bad_words=padded)
    return batch


def _more(n: int, least: int = 16) -> int:
    return max(least, 1 << (n - 1).bit_length()) - n


def settle(state: State, new: State) -> None:
    """Copy what a step returned into the state's own memory, where it is not there already."""
    pairs = [(old, got) for old, got in _pairs(state, new) if not _same(old, got)]
    if not pairs:
        return
    held = {t.untyped_storage().data_ptr() for t, _ in _pairs(state, state)}
    moved = [(old, got.clone() if got.untyped_storage().data_ptr() in held else got) for old, got in pairs]
    for old, got in moved:
        old.copy_(got)


def _same(a: Tensor, b: Tensor) -> bool:
    return a is b or (a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.stride() == b.stride())


def _pairs(old: Any, new: Any) -> Iterator[tuple[Tensor, Tensor]]:
    if isinstance(old, Tensor):
        if not isinstance(new, Tensor) or old.shape != new.shape or old.dtype != new.dtype:
            raise RuntimeError(f"a step returned a state of another form: {_form(new)} in place of {_form(old)}")
        yield old, new
    elif isinstance(old, Mapping):
        if not isinstance(new, Mapping) or old.keys() != new.keys():
            raise RuntimeError("a step returned a state with other keys")
        for k in old:
            yield from _pairs(old[k], new[k])
    elif isinstance(old, list | tuple):
        if len(old) != len(new):
            raise RuntimeError(f"a step returned {len(new)} parts of a state of {len(old)}")
        for a, b in zip(old, new, strict=True):
            yield from _pairs(a, b)


def _form(x: Any) -> str:
    return f"{x.dtype} {list(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
