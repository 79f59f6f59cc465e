"""The one model runner: plan attention on the host, pick the executable, launch. It never waits and never looks at a result."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from thalweg.hal.attention import AttentionBackend, AttnSpec
from thalweg.hal.platform import Executable, Pending
from thalweg.hal.step import Features, StepBatch, StepShape

Compile = Callable[[StepShape | None, Features | None], Executable]


class Runner:
    """Launches steps on one device.

    attention: the backend and the spec of each KV group, for its host-side plan.
    buckets: shapes to pad to, any order; empty = one executable takes every shape.
    compile: makes an executable; called once without buckets, else once per bucket and set of features, when first met.
    """

    def __init__(
        self, compile: Compile, attention: Sequence[tuple[AttentionBackend, AttnSpec]], buckets: Sequence[StepShape]
    ) -> None:
        self._compile = compile
        self._attention = tuple(attention)
        self._buckets = sorted(buckets, key=lambda s: (s.tokens, s.seqs, s.blocks, not s.uniform))
        self._made: dict[StepShape | None, list[tuple[Features, Executable]]] = {}
        self._any = None if buckets else compile(None, None)

    def launch(self, batch: StepBatch) -> Pending:
        """Start one step. Steps take effect in the order of these calls."""
        shape = None
        if self._any is None:
            shape = self._fit(batch)
            batch = batch.pad(shape)
        if self._attention:
            batch.plans = tuple(a.plan(batch, g, spec, shape) for g, (a, spec) in enumerate(self._attention))
        return (self._any or self._executable(shape, batch.features))(batch)

    def _fit(self, batch: StepBatch) -> StepShape:
        for s in self._buckets:
            if s.fits(batch):
                return s
        raise ValueError(
            f"no bucket holds {batch.tokens.shape[0]} tokens of {batch.slots.shape[0]} sequences with "
            f"{max(t.shape[1] for t in batch.block_tables)} blocks; the largest is {self._buckets[-1]}"
        )

    def _executable(self, shape: StepShape | None, features: Features) -> Executable:
        made = self._made.setdefault(shape, [])
        for f, exe in made:
            if f.covers(features):
                return exe
        made.append((features, self._compile(shape, features)))
        return made[-1][1]
