"""Linear layers with quantised weights, by the Pallas kernel: what it takes, and how it wants a canonical weight."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from thalweg.backends.tpu.interop import in_jax
from thalweg.backends.tpu.pallas.quantised_matmul import DEPTH, HALF, matmul, pack_codes
from thalweg.hal.op import Kernel
from thalweg.hal.weights import DENSE, QTensor, WeightFormat


def kernels(interpret: bool) -> tuple[Kernel, ...]:
    run = in_jax(partial(_linear, interpret=interpret))
    return (Kernel("linear", "pallas-quantised", run, supports=_supports, pack=_pack),)


def _supports(facts: Mapping[str, Any]) -> str | None:
    format: WeightFormat = facts["weight"]
    if format == DENSE:
        return "runs quantised weights; dense ones are XLA's"
    if format.act:
        return f"multiplies in the model's dtype, not in {format.act}"
    if format.scale_dtype:
        return f"runs float32 scales, not {format.scale_dtype}"
    if format.bits not in (4, 8):
        return f"runs 4 and 8 bits, not {format.bits}"
    if format.bits == 8 and not format.symmetric:
        return "runs 8-bit weights without zero points"
    if format.group > 0 and DEPTH % format.group:
        return f"runs groups that divide {DEPTH}, not {format.group}"
    return None


def _pack(w: QTensor) -> dict[str, jax.Array]:
    """ "codes" as `pack_codes` has them, "scales" and "zeros" [groups, out]."""
    integers = w.format.kind == "int" and w.format.bits == 4
    codes, scales = jnp.asarray(w.data["codes"]), jnp.asarray(w.data["scales"], jnp.float32)
    if integers and w.format.symmetric:
        codes = codes + HALF
    packed = {
        "codes": pack_codes(codes, 4 if integers else 8),
        "scales": jnp.broadcast_to(scales.reshape(scales.shape[0], -1).T, (scales.size // scales.shape[0], w.shape[0])),
    }
    if "zeros" in w.data:
        packed["zeros"] = jnp.asarray(w.data["zeros"]).T
    return packed


def _linear(
    x: jax.Array, weight: Mapping[str, jax.Array], bias: jax.Array | None = None, *, act: str = "", group: int = 0,
    interpret: bool = False,
) -> jax.Array:  # fmt: skip
    """See the op. act is refused when bound."""
    rows = x.reshape(-1, x.shape[-1])
    out = matmul(rows, weight["codes"], weight["scales"], weight.get("zeros"), group=max(group, 0), interpret=interpret)
    out = out.reshape(*x.shape[:-1], -1)
    return out if bias is None else out + bias
