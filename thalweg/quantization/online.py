"""Rounding a 16- or 32-bit checkpoint while it is loaded: which matrices, to which formats.

int8: layers hold int8 with a scale per output, and round each row of their input to int8 as well, so that products are of
integers. w4a16: layers hold 4-bit codes with a scale and a zero point per 64 inputs; inputs keep their type. w4a8: the same
weights, but each 64 inputs of a row are rounded to int8 by their largest, a small part of the noise that 4 bits make, so that
products are of integers. "int4" is the first of w4a8 and w4a16 for which the device has a kernel. In all, the output
matrix holds int8 and its inputs keep their type, because every rounding there moves logits directly; the embedding, of which a
step reads a few rows, and norms and biases stay as they are. Values are rounded to nearest; nothing is calibrated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from thalweg.hal.weights import DENSE, QTensor, WeightFormat

CHUNK = 1 << 20
"""Weights rounded at once: their float32 copies stay in a cache."""


@dataclass(frozen=True, slots=True)
class Formats:
    """Of the matrices inside layers, and of the output matrix."""

    layers: WeightFormat = DENSE
    head: WeightFormat = DENSE

    def of(self, role: str, name: str) -> WeightFormat:
        """What a parameter is held in. role: what it is for ("linear", "experts", "head", ...); name: its first tensor."""
        if role == "linear":
            return self.layers
        if role == "experts":  # their op rounds no inputs
            return replace(self.layers, act="")
        return self.head if role in ("head", "tied") else DENSE


DENSE_FORMATS = Formats()
METHODS: Mapping[str, Formats] = {
    "int8": Formats(WeightFormat("int", 8, act="int8"), WeightFormat("int", 8)),
    "w4a16": Formats(WeightFormat("int", 4, 64, symmetric=False), WeightFormat("int", 8)),
    "w4a8": Formats(WeightFormat("int", 4, 64, symmetric=False, act="int8_per_group"), WeightFormat("int", 8)),
}
"""By the names that `thalweg.config.QUANTIZATIONS` gives users, but for those of CANDIDATES."""
CANDIDATES: Mapping[str, tuple[str, ...]] = {"int4": ("w4a8", "w4a16")}
"""Names that leave the choice to the device: methods of equal size, best first. The last one is for any device."""


def formats(method: str | None) -> Formats:
    """None: nothing is rounded. Of a name of CANDIDATES the last one: enough for memory to be planned."""
    return METHODS[CANDIDATES.get(method, (method,))[-1]] if method else DENSE_FORMATS


def chosen(method: str | None, gains: Callable[[WeightFormat], bool]) -> str | None:
    """The name of METHODS that is meant. gains: has the device a kernel for linear layers of this format, and is it the best
    way there?"""
    if method is None or method not in CANDIDATES:
        return method
    *better, last = CANDIDATES[method]
    return next((m for m in better if gains(METHODS[m].layers)), last)


def linear_spec(format: WeightFormat) -> dict[str, Any]:
    """What a linear layer says of its weight when it binds."""
    return {"weight": format} if format == DENSE else {"weight": format, "act": format.act, "group": format.group}


def rounded(w: QTensor, format: WeightFormat) -> QTensor:
    """A dense weight in another format, some rows at a time (rows do not depend on each other)."""
    import torch  # here, because memory is planned without a framework

    from thalweg.hal.ops.quantise import quantise

    dense, (out, fan_in) = w.data["weight"], w.shape
    rows = max(1, CHUNK // fan_in)
    parts = [quantise(dense[i : i + rows], format).data for i in range(0, out, rows)]
    data = parts[0] if len(parts) == 1 else {name: torch.cat([p[name] for p in parts]) for name in parts[0]}
    return QTensor(format, w.shape, data)
