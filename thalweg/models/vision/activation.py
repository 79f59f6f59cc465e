"""Activations of encoders that read one clip at a time. No batch can change the results, so those of torch are used. On `cpu`
its GELU is several times as fast as that of `ops.activation`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch.nn import functional

from thalweg.hal.ops.activation import activate
from thalweg.hal.step import Array

FUNCTIONS: Mapping[str, Callable[[Array], Array]] = {"gelu": functional.gelu, "silu": functional.silu}


def activate_clip(x: Array, act: str) -> Array:
    """x through the activation of this name. ValueError for an unknown name."""
    found = FUNCTIONS.get(act)
    return activate(x, act) if found is None else found(x)
