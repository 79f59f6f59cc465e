"""Two kernels in NumPy. Every op without one runs the body that defines it; the kernel plan says which is which, and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg.hal.op import Kernel, Pack
from thalweg.hal.weights import QTensor


def _supports(spec: Mapping[str, Any]) -> str | None:
    """None, or why not, in words: they are printed in the kernel plan."""
    if "weight" in spec and spec["weight"].kind != "dense":
        return f"runs dense weights, not {spec['weight']}"
    return None if spec["dtype"] == "float32" else f"NumPy has no {spec['dtype']}"


def _rms_norm(x: Tensor, weight: Tensor | None = None, *, eps: float, offset: float = 0.0) -> Tensor:
    a = x.numpy()
    scale = 1 / np.sqrt(np.mean(a * a, -1, keepdims=True, dtype=np.float64) + eps)
    normed = (a * scale).astype(np.float32)
    return torch.from_numpy(normed if weight is None else normed * (weight.numpy() + np.float32(offset)))


def _transposed(w: QTensor) -> np.ndarray:
    """Called once per layer, at load: this kernel reads a weight as [in, out], in float64."""
    return np.ascontiguousarray(w.data["weight"].numpy().T, dtype=np.float64)


def _linear(x: Tensor, weight: np.ndarray, bias: Tensor | None = None) -> Tensor:
    """In float64: in whatever order the product sums, what is left of it in float32 is the same, so a row does not depend
    on its company. That is what `batch_invariant` claims, and the conformance kit tests."""
    out = torch.from_numpy((x.numpy().astype(np.float64) @ weight).astype(np.float32))
    return out if bias is None else out + bias


KERNELS = (
    Kernel("linear", "numpy", _linear, supports=_supports, pack=Pack(_transposed), batch_invariant=True),
    Kernel("rms_norm", "numpy", _rms_norm, supports=_supports, batch_invariant=True),
)
