"""Linear layers with quantised weights, by the Pallas kernel: the supported formats, and the packing of a canonical weight."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from thalweg.backends.tpu.interop import in_jax
from thalweg.backends.tpu.pallas.quantised_matmul import matmul
from thalweg.backends.tpu.pallas.tiles import DEPTH, HALF, pack_codes, pack_factors
from thalweg.hal.op import Kernel, Pack
from thalweg.hal.weights import DENSE, QTensor, WeightFormat

ROUNDED = ("int8", "float8_e4m3fn")
"""Types that inputs may be rounded to."""
LONGEST = 1 << 17
"""Products of two 8-bit integers with a sum that an int32 surely holds."""


def kernels(interpret: bool) -> tuple[Kernel, ...]:
    run = in_jax(partial(_linear, interpret=interpret))
    result = Pack(pack)
    return (
        Kernel("linear", "pallas-quantised", run, supports=partial(_supports, rounds=False), pack=result),
        Kernel("linear", "pallas-rounded", run, supports=partial(_supports, rounds=True), pack=result),
    )


def _supports(spec: Mapping[str, Any], rounds: bool) -> str | None:
    format: WeightFormat = spec["weight"]
    if format == DENSE:
        return "runs quantised weights; dense ones are XLA's"
    if format.act and not rounds:
        return f"multiplies in the model's dtype, not in {format.act}"
    if rounds and format.act not in ROUNDED:
        return f"rounds its inputs to {' or '.join(ROUNDED)}, not to {format.act or 'nothing'}"
    if format.act == "int8" and (format.kind, format.bits, format.symmetric, format.group > 0) != ("int", 8, True, False):
        return f"multiplies integers by 8-bit integers with one scale per output, not by {format}"
    if format.act == "int8" and spec.get("in_features", 0) > LONGEST:
        return f"sums {LONGEST} products of integers at most, not {spec['in_features']}"
    return unpackable(format)


def unpackable(format: WeightFormat) -> str | None:
    """Why `pack` cannot, or None."""
    if format.scale_dtype:
        return f"runs float32 scales, not {format.scale_dtype}"
    if format.kind == "table":
        return "runs integers and floats, no tables of levels"
    if format.bits not in (4, 8):
        return f"runs 4 and 8 bits, not {format.bits}"
    if format.mins:
        return "runs zero points, no minima of groups"
    if format.bits == 8 and not format.symmetric:
        return "runs 8-bit weights without zero points"
    if format.group > 0 and DEPTH % format.group:
        return f"runs groups that divide {DEPTH}, not {format.group}"
    return None


def pack(w: QTensor) -> dict[str, jax.Array]:
    """ "codes" as `pack_codes` has them, "scales" and "zeros" as `pack_factors` has them."""
    group = max(w.format.group, 0)
    integers = w.format.kind == "int" and w.format.bits == 4
    codes, scales = jnp.asarray(w.data["codes"]), jnp.asarray(w.data["scales"], jnp.float32)
    if integers and w.format.symmetric:
        codes = codes + HALF
    scales = jnp.broadcast_to(scales.reshape(scales.shape[0], -1).T, (scales.size // scales.shape[0], w.shape[0]))
    packed = {
        "codes": pack_codes(codes, 4 if integers else 8), "scales": pack_factors(scales, group, w.shape[1]),
    }  # fmt: skip
    if "zeros" in w.data:
        packed["zeros"] = pack_factors(jnp.asarray(w.data["zeros"]).T, group, w.shape[1])
    return packed


def _linear(
    x: jax.Array, weight: Mapping[str, jax.Array], bias: jax.Array | None = None, *, act: str = "", group: int = 0,
    interpret: bool = False,
) -> jax.Array:  # fmt: skip
    """See the op."""
    rows, scale = x.reshape(-1, x.shape[-1]), None
    if act:
        rows, scale = round_rows(rows, act)
    out = matmul(
        rows, weight["codes"], weight["scales"], weight.get("zeros"), scale, group=max(group, 0),
        dtype=x.dtype, interpret=interpret,
    )  # fmt: skip
    out = out.reshape(*x.shape[:-1], -1)
    return out if bias is None else out + bias


def round_rows(x: jax.Array, act: str) -> tuple[jax.Array, jax.Array]:
    """`hal.ops.quantise.quantise_rows`: (codes, scale float32 [rows, 1]). Codes of a float type come in x's dtype, which
    holds them exactly: not every matrix unit multiplies 8-bit floats."""
    top = 127.0 if act == "int8" else float(jnp.finfo(act).max)
    wide = x.astype(jnp.float32)
    scale = jnp.abs(wide).max(-1, keepdims=True) / top
    scale = jnp.where(scale > 0, scale, 1.0)
    codes = wide / scale
    codes = jnp.clip(jnp.round(codes) if act == "int8" else codes, -top, top).astype(act)
    return codes if act == "int8" else codes.astype(x.dtype), scale
