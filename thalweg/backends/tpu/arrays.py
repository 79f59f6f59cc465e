"""Arrays across the border: torch and numpy to JAX, a whole batch as one transfer, and results back.

Every array of a batch has 4-byte values or is bool, so a batch travels as one buffer of 32-bit words. A transfer
costs more than the few thousand values of a decode step. Inside the program the buffer is cut up again. Cuts are
free.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, fields
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import torch

from thalweg.hal.step import Logprobs, StepBatch, StepResult, statics

for _kind in (StepResult, Logprobs):
    jax.tree_util.register_dataclass(_kind, data_fields=[f.name for f in fields(_kind)], meta_fields=[])

RAW = {
    torch.bfloat16: (torch.int16, ml_dtypes.bfloat16),
    torch.float8_e4m3fn: (torch.uint8, ml_dtypes.float8_e4m3fn),
    torch.float8_e5m2: (torch.uint8, ml_dtypes.float8_e5m2),
}
"""torch types numpy has no name for: an integer type as wide, and JAX's name."""


def to_host(a: Any) -> np.ndarray:
    """A torch tensor or numpy array as numpy, with JAX's types. 64-bit values become 32-bit."""
    if isinstance(a, torch.Tensor):
        a = a.detach()
        if a.dtype in RAW:
            raw, kind = RAW[a.dtype]
            a = a.contiguous().view(raw).numpy().view(kind)
        else:
            a = a.numpy()
    there = np.asarray(a)
    narrow = {"int64": np.int32, "uint64": np.uint32, "float64": np.float32}.get(there.dtype.name)
    return there if narrow is None else there.astype(narrow)


@dataclass(frozen=True, slots=True)
class ArraySlice:
    """Where one array lies in the buffer: words from `at` on."""

    shape: tuple[int, ...]
    kind: str
    """int32, float32, uint32 or bool."""
    at: int

    def out_of(self, buffer: jax.Array) -> jax.Array:
        """In a program: the array again. Unsigned words come as int32, as ops want them."""
        words = jax.lax.slice(buffer, (self.at,), (self.at + math.prod(self.shape),)).reshape(self.shape)
        if self.kind == "float32":
            return jax.lax.bitcast_convert_type(words, jnp.float32)
        return words != 0 if self.kind == "bool" else words


def pack(batch: StepBatch) -> tuple[np.ndarray, StepBatch, Hashable]:
    """(every array of a host batch in one i32 buffer, the batch with each array replaced by an `ArraySlice`, a key). The key
    is equal for batches that unpack alike. TypeError for arrays of other types."""
    parts: list[np.ndarray] = []
    cuts: list[ArraySlice] = []
    at = 0

    def take(a: np.ndarray) -> ArraySlice:
        nonlocal at
        if a.dtype.name not in ("int32", "float32", "uint32", "bool"):
            raise TypeError(f"an array of {a.dtype} in a StepBatch: only 4-byte types and bool travel")
        words = np.ascontiguousarray(a.astype(np.int32) if a.dtype == np.bool_ else a).reshape(-1).view(np.int32)
        cut = ArraySlice(a.shape, a.dtype.name, at)
        at += words.size
        parts.append(words)
        cuts.append(cut)
        return cut

    cut_up = batch.map(take)
    names = tuple(name for name, _ in batch.arrays())
    return np.concatenate(parts), cut_up, (tuple(cuts), names, statics(batch))
