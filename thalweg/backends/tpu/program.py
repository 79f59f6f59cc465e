"""Programs: the step traced through torchax and compiled by XLA, once per layout of its batch.

A program takes (parameters, state, batch buffer) and gives (state, result). The state is donated: the new one lies in the
old one's memory. Launching returns at once, as JAX dispatches asynchronously; results come back when they are asked for.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
import torch
import torchax
from torchax import interop

from thalweg.backends.tpu.arrays import pack
from thalweg.hal.step import Features, Params, StateBox, Step, StepBatch, StepResult, StepShape


def in_jax(f: Callable[..., Any]) -> Callable[..., Any]:
    """A function of JAX arrays as one of torch tensors, to be called while a step is traced."""

    def call(*args: Any, **static: Any) -> Any:
        return interop.torch_view(f(*interop.jax_view(args), **static))

    return call


def trace(step: Step, params: Params, state: Any, batch: StepBatch) -> tuple[Any, StepResult]:
    """The step on JAX values (tracers): torch sees views of them, and what it computes are JAX operations."""
    with torchax.default_env(), warnings.catch_warnings():
        # 64-bit indices are 32-bit here: they index tables far below 2^31 entries.
        warnings.filterwarnings("ignore", message="Explicitly requested dtype")
        params, state = jax.tree.map(interop.torch_view, (params, state))
        state, result = step(params, state, batch.map(interop.torch_view))
    taken = jax.tree.map(interop.jax_view, (state, result), is_leaf=lambda x: isinstance(x, torch.Tensor))
    return taken


@dataclass(slots=True)
class Launched:
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


class Executable:
    """One step with its parameters, for one bucket and set of features, or (without them) for any batch. The batch's arrays
    decide how many programs there are: one, as long as flat lists are empty or within the same powers of two."""

    def __init__(
        self, step: Step, params: Params, box: StateBox, shape: StepShape | None, features: Features | None, device: Any
    ) -> None:
        self._step, self._params, self._box, self._device = step, params, box, device
        self._features = features
        self._uniform = shape.tokens // shape.seqs if shape is not None and shape.uniform else 0
        self._programs: dict[Hashable, Any] = {}

    def __call__(self, batch: StepBatch) -> Launched:
        batch = replace(batch, features=self._features or batch.features, uniform=self._uniform)
        try:
            buffer, cut_up, key = pack(batch)
            program = self._programs.get(key)
            if program is None:
                program = self._programs[key] = self.program(cut_up)
            state, result = program(self._params, self._box.value, jax.device_put(buffer, self._device))
        except Exception as e:
            return Launched(None, e)
        self._box.value = state
        for a in jax.tree.leaves(result):
            a.copy_to_host_async()
        return Launched(result)

    def program(self, cut_up: StepBatch) -> Any:
        """The jitted function of (params, state, buffer) for batches that unpack like this one."""

        def run(params: Params, state: Any, buffer: jax.Array) -> tuple[Any, StepResult]:
            # float32 products are float32 products, not the three bfloat16 ones the matrix units would rather do.
            with jax.default_matmul_precision("highest"):
                return trace(self._step, params, state, cut_up.map(lambda cut: cut.out_of(buffer)))

        return jax.jit(run, donate_argnums=(1,))
