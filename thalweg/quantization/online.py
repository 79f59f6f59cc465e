"""Rounding a 16- or 32-bit checkpoint while it is loaded: which matrices, to which formats.

int8: layers hold int8 with a scale per output, and round each row of their input to int8 as well, for integer matmuls. Where
the device has a kernel for it, the four largest inputs of a row keep their values, and the fifth gives the scale. They make up
nearly all of the error: of SmolLM2-135M's perplexity, 4 to 5 %.
w4a16: layers hold 4-bit codes with a scale and a zero point per 64 inputs; inputs keep their dtype. w4a8: the same weights,
but each 64 inputs of a row are rounded to int8 by their largest, for integer matmuls. The error is small next to that of 4
bits.
int4: w4a8 where the device has a kernel that gains by it, else w4a16. Narrow models lose much more to 4 bits than wide ones.
There groups have 32 inputs, with zero points in sixteenths for w4a8, and the matrices that lose most hold int8 like the output
matrix (`models.precision`, `Formats.narrow`). GGUF's Q4_K_M gives 6 bits or more to half of the projections of values and
those back from the MLP.
In all three, weights that are 4-bit integers in groups of 32 already (`grids`) keep their groups, with a minimum each. Where
only some matrices of a narrow model are, int4 keeps those, and matrices that are 5- or 6-bit integers in groups of 32 or 16.

fp8: 8-bit floats with a scale per output. Each row of the input is rounded to 8-bit floats too, where the device multiplies
such floats. fp8_per_block: scales per 128 inputs, of weights and of rows of the input. w8a16: int8 with a scale per output.
mxfp4, nvfp4: 4-bit floats by groups of 32 and 16. In these three inputs keep their dtype.

In all, the output matrix holds int8. Every rounding there moves logits directly, so its inputs keep their dtype in most. int8
and w4a8 round them too, but for the four largest, where the device has a kernel that gains by it.

The embedding, of which a step reads a few rows, and norms and biases are not rounded. Values are rounded to nearest, without
calibration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from thalweg.hal.weights import DENSE, ONCE, QTensor, WeightFormat
from thalweg.options.weights import SPELLINGS
from thalweg.quantization import grids

if TYPE_CHECKING:
    from torch import Tensor

CHUNK = 1 << 20
"""Weights rounded at once: their float32 copies stay in a cache."""
NARROW, SMALL_GROUP = 1024, 32
"""Models with hidden states of fewer values count as narrow. Inputs that share a scale there."""


@dataclass(frozen=True, slots=True)
class Formats:
    """Of the matrices inside layers, and of the output matrix."""

    layers: WeightFormat = DENSE
    head: WeightFormat = DENSE
    plain_head: WeightFormat | None = None
    """Replaces `head` where the device gains nothing by that. It takes no more memory."""
    plain_layers: WeightFormat | None = None
    """The same for `layers`."""
    mixes: bool = False
    """Narrow models have smaller groups, and some matrices in more bits (`narrow`)."""
    sensitive: frozenset[str] = frozenset()
    """Matrices inside layers in the format of the output matrix, by the names of their tensors."""
    exact: frozenset[str] = frozenset()
    """The same of matrices that are 4-bit integers already: their groups have a minimum each, which loses nothing."""
    fine: Mapping[int, frozenset[str]] = field(default_factory=dict)
    """The same of matrices that are 6-bit integers already, by the inputs that share a scale. Inputs keep their dtype."""

    def narrow(self, exact: Iterable[str] = ()) -> Formats:
        """The formats for a narrow model, where they differ. exact: as in the field."""
        if not self.mixes:
            return self
        plain = self.plain_layers and replace(self.plain_layers, group=SMALL_GROUP)
        layers = replace(self.layers, group=SMALL_GROUP, mins=True, sixteenths=True)
        return replace(self, layers=layers, plain_layers=plain, exact=frozenset(exact))

    def choose(self, gains: Callable[[WeightFormat], bool]) -> Formats:
        """The best of these formats for a device, as `Scheme.choose` has it."""
        layers = self.layers if self.plain_layers is None or gains(self.layers) else self.plain_layers
        head = self.head if self.plain_head is None or gains(self.head) else self.plain_head
        return Formats(layers, head, sensitive=self.sensitive, exact=self.exact, fine=self.fine)

    def of(self, role: str, name: str) -> WeightFormat:
        """The format of a parameter. role: its use ("linear", "experts", "head", ...); name: its first tensor."""
        if role == "linear" and name in self.exact:
            return replace(self.layers, mins=True, sixteenths=False)
        if role == "linear" and (group := next((g for g, names in self.fine.items() if name in names), 0)):
            return fine_format(group)
        if role == "linear":
            return self.head if name in self.sensitive else self.layers
        if role == "experts":  # their op rounds no inputs
            return replace(self.layers, act="", mins=self.layers.mins and not self.layers.sixteenths, sixteenths=False)
        return self.head if role in ("head", "tied") else DENSE


def fine_format(group: int) -> WeightFormat:
    """6-bit integers with a scale per so many inputs."""
    return WeightFormat("int", 8, group, code_bits=grids.FINE)


DENSE_FORMATS = Formats()
_HEAD = WeightFormat("int", 8)
_KEEP = WeightFormat("int", 8, act="int8_keep4")
_FOUR = WeightFormat("int", 4, 64, symmetric=False)
_FOUR_ROUNDED = replace(_FOUR, act="int8_per_group")
METHODS: Mapping[str, Formats] = {
    "int8": Formats(_KEEP, _KEEP, _HEAD, WeightFormat("int", 8, act="int8")),
    "int4": Formats(_FOUR_ROUNDED, _KEEP, _HEAD, _FOUR, mixes=True),
    "w8a16": Formats(WeightFormat("int", 8), _HEAD),
    "w4a16": Formats(_FOUR, _HEAD),
    "w4a8": Formats(_FOUR_ROUNDED, _KEEP, _HEAD),
    "fp8": Formats(WeightFormat("float", 8, act="float8_e4m3fn"), _HEAD, plain_layers=WeightFormat("float", 8)),
    "fp8_per_block": Formats(
        WeightFormat("float", 8, 128, act="float8_e4m3fn_per_group"), _HEAD, plain_layers=WeightFormat("float", 8, 128)
    ),
    "mxfp4": Formats(WeightFormat("float", 4, 32), _HEAD),
    "nvfp4": Formats(WeightFormat("float", 4, 16, scale_dtype="float8_e4m3fn"), _HEAD),
}
"""By the names that `thalweg.options.weights.ROUNDINGS` gives users."""


def canonical_name(method: str | None) -> str | None:
    """The name used here of one that the field uses."""
    return SPELLINGS.get(method, method) if method else None


def formats(method: str | None, grid: int = 0) -> Formats:
    """None: nothing is rounded. grid: inputs that share a scale in weights that are 4-bit integers already
    (`quantization.grids`). Methods of 4-bit integers keep those."""
    method = canonical_name(method)
    found = METHODS[method] if method else DENSE_FORMATS
    if not grid or (found.layers.kind, found.layers.bits) != ("int", 4):
        return found
    plain = found.plain_layers and replace(found.plain_layers, group=grid, mins=True)
    return replace(found, layers=replace(found.layers, group=grid, mins=True), plain_layers=plain, mixes=False)


def linear_spec(format: WeightFormat) -> dict[str, Any]:
    """A linear layer's description of its weight for binding."""
    if format == DENSE:
        return {"weight": format}
    return {"weight": format.product, "act": format.act, "group": format.group}


def round_weight(w: QTensor, format: WeightFormat) -> QTensor:
    """A dense weight in another format, some rows at a time: rows share at most their largest magnitude. Inputs keep their
    order and their values. A static scale is 1."""
    import torch

    from thalweg.hal.ops.quantise import quantise

    dense, (out, fan_in) = w.data["weight"], w.shape
    rows = max(1, CHUNK // fan_in)
    top = dense.abs().amax().float() if format.scale_dtype else None
    parts = [quantise(dense[i : i + rows], format, top).data for i in range(0, out, rows)]
    data = concat_rows(parts)
    if format.reordered:
        data["perm"] = torch.arange(fan_in, dtype=torch.int32)[None]
    if format.smoothed:
        data["in_scale"] = torch.ones(1, fan_in)
    if format.own_scale:
        data["input_scale"] = torch.ones(1, 1)
    return QTensor(format, w.shape, data)


def concat_rows(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The data of QTensors of one format, rows under rows."""
    import torch

    return {k: a if k in ONCE else torch.cat([p[k] for p in parts]) for k, a in parts[0].items()}
