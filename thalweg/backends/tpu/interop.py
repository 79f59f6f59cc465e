"""The border between torch's names and JAX's values, inside a step under tracing."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax
import torch
import torchax
from torchax import interop
from torchax.tensor import XLADispatchMode

from thalweg.hal.step import Params, Step, StepBatch, StepResult

for _raw in [getattr(XLADispatchMode.__torch_dispatch__, "__wrapped__", None)]:
    # torch keeps its own compiler away from this function. To do so it imports that compiler at the first call, a
    # second of every start, for a compiler that is never used here. Where it has a mark that this is done, it does not.
    if _raw is not None:
        _raw.__dict__.setdefault("__dynamo_disable", _raw)


def in_jax(f: Callable[..., Any]) -> Callable[..., Any]:
    """A function of JAX arrays as one of torch tensors, to be called while a step is traced."""

    def call(*args: Any, **static: Any) -> Any:
        return interop.torch_view(f(*interop.jax_view(args), **static))

    return call


def trace(step: Step, params: Params, state: Any, batch: StepBatch) -> tuple[Any, StepResult]:
    """The step on JAX values (tracers): torch sees views, and computes by JAX operations."""
    with torchax.default_env(), warnings.catch_warnings():
        # 64-bit indices are 32-bit here: they index tables far below 2^31 entries.
        warnings.filterwarnings("ignore", message="Explicitly requested dtype")
        params, state = jax.tree.map(interop.torch_view, (params, state))
        state, result = step(params, state, batch.map(interop.torch_view))
    return jax.tree.map(interop.jax_view, (state, result), is_leaf=lambda x: isinstance(x, torch.Tensor))
