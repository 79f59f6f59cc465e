"""Programs: the step traced through torchax and compiled by XLA, once per layout of its batch.

A program maps (parameters, state, batch buffer) to (state, result). The state is donated: the new one lies in
the old one's memory. Launching returns at once, as JAX dispatches asynchronously. Results come back when they are
asked for.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from thalweg.backends.tpu.arrays import pack
from thalweg.backends.tpu.interop import trace
from thalweg.backends.tpu.mesh import Ranks
from thalweg.hal.step import Features, Params, StateBox, Step, StepBatch, StepResult, StepShape


@dataclass(slots=True)
class PendingTpuStep:
    """A Pending: the result's copy to the host is under way. A step that could not be launched raises when it is asked."""

    _result: StepResult | None
    _error: BaseException | None = None

    def ready(self) -> bool:
        return self._error is not None or all(a.is_ready() for a in jax.tree.leaves(self._result))

    def result(self) -> StepResult:
        if self._error is not None:
            raise self._error
        if self._result is None:
            raise RuntimeError("Pending.result() was called twice")
        taken, self._result = self._result, None
        host: StepResult = jax.tree.map(np.asarray, taken)
        return host


class TpuExecutable:
    """One step with its parameters, for one bucket and set of features, or (without them) for any batch. The batch's arrays
    decide how many programs there are: one, as long as flat lists are empty or within the same powers of two."""

    def __init__(
        self, step: Step, params: Params, box: StateBox, shape: StepShape | None, features: Features | None, ranks: Ranks
    ) -> None:
        self._step, self._params, self._box, self._ranks = step, params, box, ranks
        self._features = features
        self._uniform = shape.tokens // shape.seqs if shape is not None and shape.uniform else 0
        self._programs: dict[Hashable, Any] = {}

    def __call__(self, batch: StepBatch) -> PendingTpuStep:
        batch = replace(batch.under(self._features or batch.features), uniform=self._uniform)
        try:
            buffer, cut_up, key = pack(batch)
            program = self._programs.get(key)
            if program is None:
                program = self._programs[key] = self.program(cut_up)
            state, result = program(self._params, self._box.value, jax.device_put(buffer, self._ranks.whole()))
        except Exception as e:
            return PendingTpuStep(None, e)
        self._box.value = state
        for a in jax.tree.leaves(result):
            a.copy_to_host_async()
        return PendingTpuStep(result)

    def program(self, cut_up: StepBatch) -> Any:
        """The jitted function of (params, state, buffer) for batches that unpack like this one."""

        def run(params: Params, state: Any, buffer: jax.Array) -> tuple[Any, StepResult]:
            # float32 products are float32 products, not the three bfloat16 ones the matrix units would rather do.
            with jax.default_matmul_precision("highest"):
                return trace(self._step, params, state, cut_up.map(lambda cut: cut.out_of(buffer)))

        return jax.jit(self._ranks.over(run, self._params, self._box.value), donate_argnums=(1,))
