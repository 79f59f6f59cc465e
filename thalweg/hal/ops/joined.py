"""Linear layers together with the norm or gate that makes their inputs. Optional ops: layers that bound `linear` offer them
(`Binder.offer`), and kernels of both read one weight. Where a layer rounds its inputs, such a kernel rounds them as it makes
them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from thalweg.hal.op import Sample, op
from thalweg.hal.ops.activation import CLAMP, act_and_mul
from thalweg.hal.ops.matmul import FP8_SCALED, INT8_W8A8, linear
from thalweg.hal.ops.norm import add_rms_norm, rms_norm
from thalweg.hal.weights import WeightFormat

TOLERANCES = {"float32": 1e-2, "bfloat16": 2e-2}
"""A difference in the last bit before rounding may choose the next code of 8 bits."""


def _norm_sample(rows: int, fan_in: int, fan_out: int, weight: WeightFormat, bias: bool = False, offset: float = 0.0) -> Sample:
    def make(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        x, residual = rng.normal(size=(2, rows, fan_in))
        norm = 1 - offset + 0.1 * rng.normal(size=fan_in)
        w = rng.normal(size=(fan_out, fan_in)) / fan_in**0.5
        more = (rng.normal(size=fan_out),) if bias else ()
        return tuple(a.astype(np.float16) for a in (x, residual, norm, w, *more))

    static = {"eps": 1e-6, "weight": weight, "act": weight.act, "group": weight.group}
    named = f"{rows}x{fan_in}x{fan_out}{'+bias' if bias else ''}{'-offset' if offset else ''}-{weight}"
    return Sample(named, make, static | ({"offset": offset} if offset else {}))


@op(
    samples=[
        _norm_sample(3, 256, 80, FP8_SCALED), _norm_sample(18, 96, 33, INT8_W8A8, bias=True),
        _norm_sample(5, 160, 48, FP8_SCALED, offset=1.0),
    ],
    tolerances=TOLERANCES,
)  # fmt: skip
def rms_norm_linear(
    x: Tensor, residual: Tensor | None, norm: Tensor, weight: Tensor | Mapping[str, Tensor], bias: Tensor | None = None, *,
    eps: float, offset: float = 0.0, act: str = "", group: int = 0,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`linear` of `add_rms_norm`: x, residual [..., in], norm [in], weight [out, in], bias [out] -> ([..., out], the sum x +
    residual). residual None: x is the sum. Facts at bind: those of `linear`, and eps and offset of the norm."""
    normed, total = (
        (rms_norm.reference(x, norm, eps=eps, offset=offset), x)
        if residual is None
        else add_rms_norm.reference(x, residual, norm, eps=eps, offset=offset)
    )
    return linear.reference(normed, weight, bias, act=act, group=group), total


def _gate_sample(rows: int, fan_in: int, fan_out: int, weight: WeightFormat, gate: str = "silu", bias: bool = False) -> Sample:
    def make(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        x, w = rng.normal(size=(rows, 2 * fan_in)), rng.normal(size=(fan_out, fan_in)) / fan_in**0.5
        more = (rng.normal(size=fan_out),) if bias else ()
        return tuple(a.astype(np.float16) for a in (x, w, *more))

    static = {"gate": gate, "weight": weight, "act": weight.act, "group": weight.group}
    return Sample(f"{rows}x{fan_in}x{fan_out}{'+bias' if bias else ''}-{gate}-{weight}", make, static)


@op(
    samples=[
        _gate_sample(3, 256, 80, FP8_SCALED), _gate_sample(18, 96, 33, INT8_W8A8, "gelu_tanh", bias=True),
        _gate_sample(5, 160, 48, FP8_SCALED, f"{CLAMP}0.75"),
    ],
    tolerances=TOLERANCES,
)  # fmt: skip
def act_and_mul_linear(
    x: Tensor, weight: Tensor | Mapping[str, Tensor], bias: Tensor | None = None, *, gate: str, act: str = "", group: int = 0
) -> Tensor:
    """`linear` of `act_and_mul`: x [..., 2 in], weight [out, in], bias [out] -> [..., out]. gate: the act of `act_and_mul`.
    Facts at bind: those of `linear`, and gate."""
    out: Tensor = linear.reference(act_and_mul.reference(x, act=gate), weight, bias, act=act, group=group)
    return out
