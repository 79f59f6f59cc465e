"""x @ weight.T with a weight of 8 or 4 bits that is turned back into numbers where it is multiplied: memory is read once, in
codes. Scales belong to a whole output, or to groups of inputs; 4-bit integers lie two in a byte.

A tile of the weight is [DEPTH inputs, WIDTH outputs], inputs first, as the matrix unit wants it. Of 4-bit codes a byte holds
one input of the tile's first half (low bits) and one of its second half, so unpacking joins two halves and moves nothing.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

DEPTH, WIDTH, ROWS = 256, 256, 128
"""Of a tile: inputs, outputs, rows of x at most."""
LEAST = 16
"""Rows of x are a multiple of this."""
HALF = 8
"""What 4-bit codes of a symmetric format are stored above their value."""


def pack_codes(codes: jax.Array, bits: int) -> jax.Array:
    """[out, in] -> [in, out] padded to whole tiles; 4-bit integers (0 .. 15) two in a byte: [in / 2, out]."""
    out, fan_in = codes.shape
    wide = jnp.pad(codes.T, ((0, -fan_in % DEPTH), (0, -out % WIDTH)))
    if bits == 8:
        return wide
    low, high = jnp.split(wide.astype(jnp.uint8).reshape(-1, 2, DEPTH // 2, wide.shape[1]).swapaxes(0, 1), 2)
    return (low | (high << 4)).reshape(wide.shape[0] // 2, wide.shape[1])


def matmul(
    x: jax.Array, codes: jax.Array, scales: jax.Array, zeros: jax.Array | None, *, group: int, interpret: Any = False
) -> jax.Array:  # fmt: skip
    """x [rows, in]; codes of `pack_codes`; scales and zeros [groups, out], group inputs each (0: one group). Gives [rows, out]
    in x's dtype. group divides DEPTH. zeros, if any, are taken from the codes before they are scaled."""
    rows, fan_in = x.shape
    out, packed = scales.shape[1], codes.dtype == jnp.uint8
    tile = min(ROWS, -(-rows // LEAST) * LEAST)
    x = jnp.pad(x, ((0, -rows % tile), (0, -fan_in % DEPTH)))
    deep, wide = x.shape[1] // DEPTH, codes.shape[1] // WIDTH
    each = DEPTH // group if group else 1
    grid = (x.shape[0] // tile, wide, deep)
    factors = [_tiled(a, each if group else 0, deep) for a in (scales, zeros) if a is not None]
    spread = pl.BlockSpec((1, each, WIDTH), (lambda m, n, k: (k, 0, n)) if group else (lambda m, n, k: (0, 0, n)))
    call = pl.pallas_call(
        functools.partial(_tile, group=group, packed=packed, shifted=zeros is not None),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=0,
            grid=grid,
            in_specs=[
                pl.BlockSpec((tile, DEPTH), lambda m, n, k: (m, k)),
                pl.BlockSpec((DEPTH // 2 if packed else DEPTH, WIDTH), lambda m, n, k: (k, n)),
                *[spread] * len(factors),
            ],
            out_specs=pl.BlockSpec((tile, WIDTH), lambda m, n, k: (m, n)),
            scratch_shapes=[pltpu.VMEM((tile, WIDTH), jnp.float32)],
        ),
        out_shape=jax.ShapeDtypeStruct((x.shape[0], codes.shape[1]), x.dtype),
        interpret=interpret,
    )
    return call(x, codes, *factors)[:rows, :out]


def _tiled(a: jax.Array, each: int, deep: int) -> jax.Array:
    """[groups, out] -> [tiles along the inputs, groups of a tile, out in whole tiles], float32."""
    a = jnp.pad(a.astype(jnp.float32), ((0, each * deep - a.shape[0] if each else 0), (0, -a.shape[1] % WIDTH)))
    return a.reshape(deep if each else 1, -1, a.shape[1])


def _tile(x: Any, codes: Any, *rest: Any, group: int, packed: bool, shifted: bool) -> None:
    scales, zeros, (out, acc) = rest[0], rest[1] if shifted else None, rest[-2:]
    k = pl.program_id(2)

    @pl.when(k == 0)
    def clear() -> None:
        acc[...] = jnp.zeros_like(acc)

    if packed:
        both = codes[...].astype(jnp.int32)
        weight = jnp.concatenate([both & 15, lax.shift_right_logical(both, 4)], 0).astype(jnp.float32)
        weight = weight if shifted else weight - HALF
    else:
        weight = codes[...].astype(jnp.float32)

    def by_input(a: Any) -> jax.Array:
        """[1, groups, WIDTH] -> something that broadcasts against [DEPTH, WIDTH]."""
        each = a.shape[1]
        return (
            a[0] if each == 1 else jnp.concatenate([jnp.broadcast_to(a[0, g : g + 1], (group, WIDTH)) for g in range(each)], 0)
        )

    if zeros is not None:
        weight = weight - by_input(zeros)
    weight = (weight * by_input(scales)).astype(x.dtype)
    exact = lax.Precision.HIGHEST if x.dtype == jnp.float32 else lax.Precision.DEFAULT
    acc[...] += jnp.dot(x[...], weight, precision=exact, preferred_element_type=jnp.float32)

    @pl.when(k == pl.num_programs(2) - 1)
    def store() -> None:
        out[...] = acc[...].astype(out.dtype)
