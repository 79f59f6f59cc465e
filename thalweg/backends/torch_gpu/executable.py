"""A step as this device runs it: staged in, run as it is or replayed as a graph, staged out, and never waited for.

The state lives in the same memory for good. State that a step returns in other memory is copied back into it. Every graph and
every eager step, in whatever order they run, thus read and write one state.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from thalweg.backends.torch_gpu.ahead import NOWHERE
from thalweg.backends.torch_gpu.runtime import Event, Runtime, Work
from thalweg.backends.torch_gpu.staging import DeviceBlockTables, Inbox, Manifest, Outbox, flatten, read, room, views
from thalweg.hal.fields import grown
from thalweg.hal.parts.scores import Scores
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
    TableRows,
    lay_out,
    statics,
    unpack,
)

logger = logging.getLogger(__name__)

LAYOUTS = 8
"""Graphs one executable keeps at most: one per layout of its batches (masks, biases)."""
IDLE = 256
"""Calls of an executable after which a graph without a replay makes room for another."""
MET = 64
"""Layouts that were met once and are remembered."""
COUNTS = (20, 64)
"""Logprobs are computed for so many of the top tokens, so any requested count runs the same code. The counts are the usual
request, and the most that kernels look for."""


ENTRIES = 16
"""Least length of a list in a graph."""


def bucket_logprobs(features: Features) -> Features:
    """The same with as many logprobs as code is there for: the first columns of a longer list are the shorter one."""
    logprobs, score = features.logprobs, features.level(Scores)
    if score > 0:
        features = features.plus(Scores, _count(score))
    return replace(features, logprobs=_count(logprobs)) if logprobs > 0 else features


def _count(k: int) -> int:
    return next((c for c in COUNTS if k <= c), k)


@dataclass(slots=True)
class _Outcome:
    """Filled in when the step runs, which on a GPU is during the launch."""

    packed: Tensor | None = None
    manifest: Manifest | None = None
    host: Tensor | None = None
    error: BaseException | None = None


class PendingGpuStep:
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


@dataclass(slots=True)
class _CapturedGraph:
    buffer: Tensor
    """Place where the batch must lie."""
    packed: Tensor
    """Place where the result will lie, until the next replay."""
    manifest: Manifest
    replay: Work
    used: int = 0
    """The executable's call that last replayed it."""


@dataclass(slots=True)
class GpuContext:
    """State shared by all executables of a device."""

    runtime: Runtime
    inbox: Inbox
    outbox: Outbox
    buffer: Tensor
    """The batch of an eager step."""
    home: Tensor
    """The batch of every graph. One that needs a larger buffer gets it, and older graphs keep theirs."""
    tables: DeviceBlockTables
    warned: set[str] = field(default_factory=set)
    """Messages logged already, which every executable would repeat."""
    views: dict[Layout, dict[str, Tensor]] = field(default_factory=dict)
    """Views of `buffer`, by layout. A few."""

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

    def graphs_place(self, n: int) -> Tensor:
        """Where a graph's batch of n bytes will lie: graphs run in sequence, each after its batch has arrived."""
        if self.home.numel() < n:
            self.home = torch.empty(room(n), dtype=torch.uint8, device=self.runtime.device)
        return self.home

    def tell(self, kind: str, words: str, *values: Any) -> None:
        """Say it once."""
        if kind not in self.warned:
            self.warned.add(kind)
            logger.warning(words, *values)


class GpuExecutable:
    """shape: pad-to bucket or None. features: those it is compiled for. None = those of each batch. capture: a layout met a
    second time is captured, and replayed from then on."""

    def __init__(
        self, lane: GpuContext, step: Step, params: Params, state: StateBox, shape: StepShape | None, features: Features | None,
        capture: bool,
    ) -> None:  # fmt: skip
        self._lane, self._step, self._params, self._state = lane, step, params, state
        self._shape, self._features, self._capture = shape, features, capture
        self._graphs: dict[Any, _CapturedGraph] = {}
        """Captured graphs by layout and statics."""
        self._met: dict[Any, None] = {}
        """Layouts and statics that ran once."""
        self._calls = 0

    @property
    def shape(self) -> StepShape | None:
        """The shape it was made for."""
        return self._shape

    def captures(self, features: Features) -> bool:
        """Whether it was made for these features, and captures a batch that comes again."""
        return self._capture and self._features == features

    def launch_nowhere(self, batch: StepBatch, nowhere: Callable[[Any], Any]) -> None:
        """The step on tensors without memory, which `nowhere` makes of parameters and state. Its batch lies as on the device:
        kernels get the same alignments."""
        batch = self._asking(batch)
        batch = even(batch) if self._capture else batch
        layout, n = lay_out(batch)
        arrays = views(torch.empty(n, dtype=torch.uint8, device=NOWHERE), layout)
        placed = unpack(batch, arrays)
        tables = tuple(
            torch.empty(t.shape, dtype=torch.int32, device=NOWHERE) if isinstance(t, TableRows) else t
            for t in placed.block_tables
        )
        with torch.inference_mode():
            self._step(nowhere(self._params), nowhere(self._state.value), replace(placed, block_tables=tables))

    def _asking(self, batch: StepBatch) -> StepBatch:
        return batch.under(bucket_logprobs(batch.features) if self._features is None else self._features)

    def __call__(self, batch: StepBatch) -> PendingGpuStep:
        batch = self._asking(batch)
        self._lane.tables.send(batch)
        if not self._capture:
            return self._eager(batch)
        batch = even(batch)
        layout, n = lay_out(batch)
        key = (layout, statics(batch))
        self._calls += 1
        graph = self._graphs.get(key)
        if graph is None:
            if not self._again(key) or not self._room():
                return self._eager(batch)
            try:
                graph = self._graphs[key] = self._record(batch, layout, n)
            except RuntimeError as e:
                self._capture = False
                self._lane.tell(f"{e}", "%s and others like it run without a graph, more slowly: %s", self._shape, e)
                return self._eager(batch)
        graph.used = self._calls
        return self._replay(graph, batch, layout, n)

    def _again(self, key: Any) -> bool:
        """Was it met before?"""
        if key in self._met:
            return True
        if len(self._met) >= MET:
            self._met.clear()
        self._met[key] = None
        return False

    def _room(self) -> bool:
        """Is there room for a graph, or is one idle? Capturing waits for everything before it, so a graph is not given up for
        another that will soon be given up for it."""
        if len(self._graphs) < LAYOUTS:
            return True
        oldest = min(self._graphs, key=lambda k: self._graphs[k].used)
        if self._calls - self._graphs[oldest].used < IDLE:
            self._lane.tell(
                "layouts",
                "requests with more than %d layouts (lengths of logit_bias, bad_words, masks) alternate in steps of %s: some "
                "of these steps run without a graph, more slowly; lists of equal length share one",
                LAYOUTS, self._shape,
            )  # fmt: skip
            return False
        self._lane.runtime.synchronize()  # it may still run
        del self._graphs[oldest]
        return True

    def _eager(self, batch: StepBatch) -> PendingGpuStep:
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
        """The step on device arrays. Its packed result is packed before the state moves, as it may share memory with the
        state."""
        state, result = self._step(self._params, self._state.value, self._lane.tables.gather_tables(unpack(batch, arrays)))
        packed = flatten(result)
        settle(self._state.value, state)
        return packed

    def _record(self, batch: StepBatch, layout: Layout, n: int) -> _CapturedGraph:
        """The batch is in place while it is recorded, and replayed at once: recording changes nothing."""
        lane = self._lane
        buffer = lane.graphs_place(n)
        arrays = views(buffer, layout)
        lane.inbox.send(batch, layout, n, lambda: buffer)
        built: list[tuple[Tensor, Manifest]] = []

        def work() -> None:
            with torch.inference_mode():
                built.append(self._once(batch, arrays))

        replay = lane.runtime.capture(work)
        return _CapturedGraph(buffer, *built[0], replay)

    def _replay(self, graph: _CapturedGraph, batch: StepBatch, layout: Layout, n: int) -> PendingGpuStep:
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

    def _fetch(self, outcome: _Outcome) -> PendingGpuStep:
        """The result to the host, while later work runs."""
        lane = self._lane
        lane.runtime.copies.wait(lane.runtime.compute.record())

        def work() -> None:
            if outcome.packed is not None:
                n = outcome.packed.numel()
                outcome.host = lane.outbox.take(n)
                outcome.host[:n].copy_(outcome.packed, non_blocking=True)

        lane.runtime.copies.run(work)
        return PendingGpuStep(outcome, lane.runtime.copies.record(), lane.outbox)


def even(batch: StepBatch) -> StepBatch:
    """The lists of its parts padded, with entries that change nothing, to few lengths: so that batches which differ in them
    only share a graph."""
    return replace(batch, parts=tuple(grown(p, {}, least=ENTRIES) for p in batch.parts)) if batch.parts else batch


def settle(state: State, new: State) -> None:
    """Copy the state that a step returned into the state's own memory, where it is not there already."""
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
            raise RuntimeError(f"a step returned a state of another form: {_form(new)}, expected {_form(old)}")
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
