"""The one model runner: plan attention on the host, pick the executable, launch. It never waits and never looks at a result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from thalweg.hal.attention import AttentionBackend, AttnSpec
from thalweg.hal.platform import Executable, Pending
from thalweg.hal.step import SCRATCH, Features, SamplingArrays, StepBatch, StepShape, TableRows

Compile = Callable[[StepShape | None, Features | None], Executable]


class Runner:
    """Launches steps on one device.

    attention: the backend and the spec of each KV group, for its host-side plan.
    buckets: shapes to pad to, any order; empty = one executable takes every shape.
    compile: makes an executable; called once for any shape without buckets or with `unpadded`, and once per bucket and set
    of features, when first met.
    unpadded: a batch that no bucket holds runs as it is.
    widen: what Device.widen says.
    table: rows and columns of the block tables that the device keeps; None = it keeps none.
    """

    def __init__(
        self,
        compile: Compile,
        attention: Sequence[tuple[AttentionBackend, AttnSpec]],
        buckets: Sequence[StepShape],
        unpadded: bool = False,
        widen: Callable[[Features], Features] = lambda f: f,
        table: tuple[int, int] | None = None,
    ) -> None:
        self._compile, self._widen, self._table = compile, widen, table
        self._attention = tuple(attention)
        self._buckets = sorted(buckets, key=lambda s: (s.tokens, s.seqs, s.blocks, not s.uniform))
        self._made: dict[StepShape | None, list[tuple[Features, Executable]]] = {}
        self._fitted: dict[tuple[int, int, int, int], StepShape | None] = {}
        self._any = compile(None, None) if unpadded or not buckets else None

    def launch(self, batch: StepBatch) -> Pending:
        """Start one step. Steps take effect in the order of these calls."""
        shape = self._fit(batch) if self._buckets else None
        if shape is not None:
            batch = batch.pad(shape)
        if self._attention:
            batch.plans = tuple(a.plan(batch, g, spec, shape) for g, (a, spec) in enumerate(self._attention))
        if shape is None and self._any is not None:
            return self._any(batch)
        return self._executable(shape, batch.features)(batch)

    def prepare(self, shapes: Iterable[StepShape]) -> None:
        """Make the executables of these buckets, for requests that ask for nothing special, and run each once."""
        for shape in shapes:
            self.launch(_scratch(shape, len(self._attention), self._table)).result()

    def _fit(self, batch: StepBatch) -> StepShape | None:
        """The smallest bucket that holds the batch; None = it runs as it is. Remembered for uniform batches, whose sizes
        repeat."""
        blocks = max((t.shape[1] for t in batch.block_tables), default=0)
        key = (batch.tokens.shape[0], batch.slots.shape[0], blocks, batch.uniform)
        if key in self._fitted:
            return self._fitted[key]
        shape = next((s for s in self._buckets if s.fits(batch)), None)
        if shape is None and self._any is None:
            raise ValueError(
                f"no bucket holds {key[0]} tokens of {key[1]} sequences with {blocks} blocks; "
                f"the largest is {self._buckets[-1]}"
            )
        if batch.uniform:
            self._fitted[key] = shape
        return shape

    def _executable(self, shape: StepShape | None, features: Features) -> Executable:
        made = self._made.setdefault(shape, [])
        for f, exe in made:
            if f.covers(features):
                return exe
        features = self._widen(features)
        made.append((features, self._compile(shape, features)))
        return made[-1][1]


def _scratch(shape: StepShape, groups: int, table: tuple[int, int] | None) -> StepBatch:
    """The smallest batch of this bucket: one sequence that reads and writes scratch and samples nothing."""
    own = np.full((1, 1), SCRATCH, np.int32) if table is None else TableRows.scratch(1, table)
    n = shape.tokens // shape.seqs if shape.uniform else 1
    i32 = np.int32
    return StepBatch(
        tokens=np.zeros(n, i32), token_seq=np.zeros(n, i32), positions=np.arange(n, dtype=i32), slots=np.full(1, SCRATCH, i32),
        context=np.zeros(1, i32), query=np.full(1, n, i32), last_row=np.full(1, n - 1, i32), emit=np.zeros(1, bool),
        block_tables=(own,) * groups, sampling=SamplingArrays.greedy(1),
        uniform=n if shape.uniform else 0,
    ).pad(shape)  # fmt: skip
