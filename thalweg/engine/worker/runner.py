"""The model runner: plan attention on the host, pick the executable, launch. It never waits and never reads a result."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from thalweg.engine.worker.rehearsal import Table, scratch
from thalweg.hal.attention import AttentionBackend, AttnSpec
from thalweg.hal.device import Executable, Pending, Rehearsal
from thalweg.hal.step import Features, StepBatch, StepShape

Compile = Callable[[StepShape | None, Features | None], Executable]


class Runner:
    """Launches steps on one device.

    attention: the backend and the spec of each KV group, for its host-side plan; None = its layers attend to nothing.
    buckets: shapes to pad to, any order; empty = one executable runs every shape. compile: makes an executable; called once
    for any shape without buckets or with `unpadded`, and once per bucket and set of features, on first use. unpadded: a batch
    that no bucket holds runs unpadded. Buckets of sequences with different numbers of new tokens are then used only where all
    attention backends support capture of such steps. widen: `Device.widen`. tables: the form of the block table of each group
    in batches; None = as they are.
    """

    def __init__(
        self,
        compile: Compile,
        attention: Sequence[tuple[AttentionBackend, AttnSpec] | None],
        buckets: Sequence[StepShape],
        unpadded: bool = False,
        widen: Callable[[Features], Features] = lambda f: f,
        tables: Sequence[Table] | None = None,
    ) -> None:
        self._compile, self._widen = compile, widen
        self._attention = tuple(attention)
        self.tables = tuple(tables) if tables is not None else (Table(),) * len(self._attention)
        if unpadded:
            buckets = [b for b in buckets if b.uniform or all(a is not None and a[0].mixed for a in self._attention)]
        self._buckets = sorted(buckets, key=lambda s: (s.tokens, s.seqs, s.blocks, not s.uniform))
        self._made: dict[StepShape | None, list[tuple[Features, Executable]]] = {}
        self._fitted: dict[tuple[int, int, int, int], StepShape | None] = {}
        self._any = compile(None, None) if unpadded or not buckets else None

    def launch(self, batch: StepBatch) -> Pending:
        """Start one step. Steps take effect in the order of these calls."""
        run, batch = self._place(batch)
        return run(batch)

    def rehearsals(
        self, shapes: Iterable[StepShape], before: Iterable[Callable[[], StepBatch]] = (),
        after: Iterable[Callable[[], StepBatch]] = (),
    ) -> list[Rehearsal]:  # fmt: skip
        """The argument of `Device.rehearse`: these buckets, for requests without special features, and other batches before
        and after. Those before run unpadded, where steps may: in traffic, longer ones do. Batches are made when they are run,
        as tables may be large."""
        buckets: list[Callable[[], StepBatch]] = [partial(_smallest, shape, self.tables) for shape in shapes]
        as_they_are = [partial(self._rehearsal, make, self._any is None) for make in before]
        return [*as_they_are, *(partial(self._rehearsal, make) for make in (*buckets, *after))]

    def _rehearsal(self, make: Callable[[], StepBatch], padded: bool = True) -> tuple[Executable, StepBatch]:
        return self._place(make(), padded)

    def _place(self, batch: StepBatch, padded: bool = True) -> tuple[Executable, StepBatch]:
        """The executable of a batch, and the batch in the form it needs."""
        shape = self._fit(batch) if self._buckets and padded else None
        if shape is not None:
            batch = batch.pad(shape)
        if self._attention:
            batch.metadata = tuple(a[0].metadata(batch, g, a[1], shape) if a else {} for g, a in enumerate(self._attention))
        if shape is None and self._any is not None:
            return self._any, batch
        return self._executable(shape, batch.features), batch

    def _fit(self, batch: StepBatch) -> StepShape | None:
        """The smallest bucket that holds the batch; None = it runs unpadded. Cached for uniform batches, as their sizes
        repeat."""
        blocks = max((t.shape[1] for t in batch.block_tables), default=0)
        key = (batch.tokens.shape[0], batch.slots.shape[0], blocks, batch.uniform)
        if key in self._fitted:
            return self._fitted[key]
        first = bisect_left(self._buckets, key[0], key=lambda s: s.tokens)
        shape = next((s for s in self._buckets[first:] if s.fits(batch)), None)
        if shape is None and self._any is None:
            raise ValueError(
                f"no bucket holds {key[0]} tokens of {key[1]} sequences with {blocks} blocks; "
                f"the largest is {self._buckets[-1]}"
            )
        if batch.uniform:
            self._fitted[key] = shape
        return shape

    def _executable(self, shape: StepShape | None, features: Features) -> Executable:
        result = self._made.setdefault(shape, [])
        for f, exe in result:
            if f.covers(features):
                return exe
        features = self._widen(features)
        result.append((features, self._compile(shape, features)))
        return result[-1][1]


def _smallest(shape: StepShape, tables: Sequence[Table]) -> StepBatch:
    """The smallest batch of this bucket: one sequence that reads and writes scratch and samples nothing."""
    n = shape.tokens // shape.seqs if shape.uniform else 1
    return scratch([n], tables, 1, uniform=shape.uniform).pad(shape)
