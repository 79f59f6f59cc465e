"""Ops that read a weight matrix: embedding lookup, the linear layer and its argmax. Knows no weight packing: kernels do."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from thalweg.hal.op import Sample, op
from thalweg.hal.ops.quantise import dequantise, round_rows
from thalweg.hal.weights import WeightFormat

ROWS = 16
"""The linear body pads its rows to a multiple of this, see below."""


def _embed_sample(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    return rng.integers(0, 50, 9).astype(np.int32), rng.normal(size=(50, 24)).astype(np.float16)


@op(samples=[Sample("small", _embed_sample)], tolerances={"float32": 0, "bfloat16": 0})
def embed(tokens: Tensor, weight: Tensor | Mapping[str, Tensor], *, group: int = 0, dtype: str = "float32") -> Tensor:
    """Rows of the table: tokens i32[T], weight [V, H] -> [T, H]. Of a quantised table only these rows are dequantised, to
    dtype, the model's.

    Facts at bind: vocab, size, dtype, and of a quantised table weight (its WeightFormat) and group. tied, where the table is
    the output matrix too, and both are in one form."""
    if isinstance(weight, Tensor):
        return weight[tokens.long()]
    every = next(weight[k] for k in ("codes", "pairs", "float_pairs") if k in weight).shape[0]
    rows = {name: a[tokens.long().reshape(-1)] if a.shape[0] == every else a for name, a in weight.items()}
    return dequantise(rows, group, getattr(torch, dtype)).reshape(*tokens.shape, -1)


def _linear_sample(rows: int, fan_in: int, fan_out: int, bias: bool = False, weight: WeightFormat | None = None) -> Sample:
    def make(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        x = rng.normal(size=(rows, fan_in)).astype(np.float16)
        w = (rng.normal(size=(fan_out, fan_in)) / fan_in**0.5).astype(np.float16)
        return (x, w, rng.normal(size=fan_out).astype(np.float16)) if bias else (x, w)

    static = {} if weight is None else {"weight": weight, "act": weight.act, "group": weight.group}
    return Sample(f"{rows}x{fan_in}x{fan_out}{'+bias' if bias else ''}{f'-{weight}' if weight else ''}", make, static)


INT8 = WeightFormat("int", 8)
INT8_W8A8 = WeightFormat("int", 8, act="int8")
INT8_W8A8_KEEP = WeightFormat("int", 8, act="int8_keep4")
INT4 = WeightFormat("int", 4, 128)
INT4_W4A8 = WeightFormat("int", 4, 64, symmetric=False, act="int8_per_group")
INT8_W8A8_GROUPS = WeightFormat("int", 8, 64, act="int8_per_group")
INT4_ZEROS = WeightFormat("int", 4, 32, symmetric=False)
INT4_MINS = WeightFormat("int", 4, 32, symmetric=False, mins=True)
INT4_MINS_A8 = WeightFormat("int", 4, 32, symmetric=False, mins=True, act="int8_per_group")
INT8_MINS = WeightFormat("int", 8, 32, symmetric=False, mins=True)
INT8_GROUPS = WeightFormat("int", 8, 16)
INT4_GROUPS = WeightFormat("int", 4, 16, symmetric=False, mins=True)
NF4 = WeightFormat(
    "table", 4, 64,
    levels=(
        -1.0, -0.6962, -0.5251, -0.3949, -0.2844, -0.1848, -0.0911, 0.0, 0.0796, 0.1609, 0.2461, 0.3379, 0.4407, 0.5626, 0.723,
        1.0,
    ),
)  # fmt: skip
"""As bitsandbytes holds it, with levels of four digits."""
FP8 = WeightFormat("float", 8)
FP8_BLOCKS = WeightFormat("float", 8, 128)
FP8_SCALED = WeightFormat("float", 8, act="float8_e4m3fn")
MXFP4 = WeightFormat("float", 4, 32)
NVFP4 = WeightFormat("float", 4, 16, scale_dtype="float8_e4m3fn")


@op(
    samples=[
        _linear_sample(1, 64, 48),
        _linear_sample(5, 64, 96, bias=True),
        _linear_sample(33, 256, 64),
        _linear_sample(2, 2048, 32),
        *(_linear_sample(3, 256, 80, weight=f) for f in (INT8, INT8_W8A8, INT4, FP8, FP8_BLOCKS, FP8_SCALED, MXFP4)),
        _linear_sample(21, 160, 33, bias=True, weight=INT4_ZEROS),
        _linear_sample(40, 192, 64, bias=True, weight=INT4),
        _linear_sample(19, 224, 70, bias=True, weight=INT4_MINS),
        _linear_sample(3, 192, 130, weight=INT8_MINS),
        _linear_sample(6, 192, 70, bias=True, weight=INT4_MINS_A8),
        _linear_sample(18, 160, 66, weight=INT8_GROUPS),
        _linear_sample(5, 176, 66, weight=INT4_GROUPS),
        _linear_sample(4, 192, 70, bias=True, weight=NF4),
        _linear_sample(7, 200, 66, bias=True, weight=INT4_W4A8),
        _linear_sample(9, 200, 66, bias=True, weight=INT8_W8A8_GROUPS),
        _linear_sample(9, 200, 66, bias=True, weight=INT8_W8A8_KEEP),
        _linear_sample(5, 208, 48, bias=True, weight=NVFP4),
    ],
    tolerances={"float32": 1e-5, "bfloat16": 1e-2},
)
def linear(
    x: Tensor, weight: Tensor | Mapping[str, Tensor], bias: Tensor | None = None, *, act: str = "", group: int = 0
) -> Tensor:
    """x @ weight.T + bias: x [..., in], weight [out, in] (or as the kernel packed it), bias [out] -> [...,
    out].

    Facts at bind: in_features, out_features, dtype, weight (a WeightFormat), and of a quantised one its act and
    group.
    Rows are padded to a multiple of 16, because matrix libraries sum in another order for one row, or few, or a
    remainder. A padded row's result then does not depend on the number of other rows. Quantised weights are dequantised to the
    model's dtype first. With act, inputs are rounded to codes of that type with one scale per row or group, or the weight's
    "input_scale", and dequantised too.
    """
    rows = x.reshape(-1, x.shape[-1])
    if act:
        rows = round_rows(rows, act, group, None if isinstance(weight, Tensor) else weight.get("input_scale"))
    dense = weight if isinstance(weight, Tensor) else dequantise(weight, group, x.dtype)
    out = F.linear(F.pad(rows, (0, 0, 0, -rows.shape[0] % ROWS)), dense, bias)
    return out[: rows.shape[0]].reshape(*x.shape[:-1], out.shape[-1])


def _argmax_sample(rows: int, fan_in: int, fan_out: int, bias: bool = False, weight: WeightFormat | None = None) -> Sample:
    """Each row resembles one row of the weight, so that no rounding changes which output is the largest."""

    def make(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        w = rng.normal(size=(fan_out, fan_in)) / fan_in**0.5
        x = 12 * w[rng.integers(0, fan_out, rows)] + rng.normal(size=(rows, fan_in)) / 2
        more = (rng.normal(size=fan_out) / 2,) if bias else ()
        return tuple(a.astype(np.float16) for a in (x, w, *more))

    like = _linear_sample(rows, fan_in, fan_out, bias, weight)
    return Sample(like.name, make, like.static)


@op(
    samples=[
        _argmax_sample(1, 64, 48), _argmax_sample(33, 256, 200, bias=True), _argmax_sample(3, 128, 65),
        _argmax_sample(5, 256, 130, weight=INT8), _argmax_sample(4, 256, 80, weight=INT4),
        _argmax_sample(7, 192, 130, weight=INT8_W8A8_GROUPS), _argmax_sample(7, 192, 130, weight=INT8_W8A8_KEEP),
    ],
    tolerances={"float32": 1e-5, "bfloat16": 1e-2},
)  # fmt: skip
def linear_argmax(
    x: Tensor, weight: Tensor | Mapping[str, Tensor], bias: Tensor | None = None, *, act: str = "", group: int = 0
) -> tuple[Tensor, Tensor]:
    """The argmax of `linear`, arguments and facts alike -> (place i32[...], value f32[...]). Of equals the first
    place counts. In a row with NaN the value is NaN and the place is any.

    An optional op: layers that bound `linear` offer it too (`Binder.offer`), and kernels of both read one weight."""
    out = linear.reference(x, weight, bias, act=act, group=group).to(torch.float32)
    return out.argmax(-1).to(torch.int32), out.amax(-1)
