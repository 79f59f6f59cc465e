"""x @ weight.T with a weight of 8 or 4 bits. Memory is read once, in codes (`tiles` says how they lie). They become
numbers where they are multiplied. Where x was rounded to 8-bit integers too, they are multiplied as they are."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from thalweg.backends.tpu.pallas.tiles import DEPTH, WIDTH, divisor, dot, expand

DEEP, WIDE, ROWS = 8, 2, 256
"""Upper bounds of a block: tiles along the inputs, tiles along the outputs, rows of x."""
LEAST = 32
"""Rows of x are a multiple of this: a register's count of 8-bit values."""


def matmul(
    x: jax.Array, codes: jax.Array, scales: jax.Array, zeros: jax.Array | None = None, row_scale: jax.Array | None = None, *,
    group: int, dtype: Any = None, interpret: Any = False,
) -> jax.Array:  # fmt: skip
    """x [rows, in], codes of `pack_codes`, scales and zeros of `pack_factors` for this group (0: one per output),
    which divides DEPTH. Gives [rows, out] in dtype (None: x's).

    x of int8 (then codes are int8, group is 0, there are no zeros): integer matmul, summed exactly as long as 2^17 inputs do
    not pass int32, which the caller sees to. row_scale float32 [rows, 1]: the factor of each row."""
    (rows, fan_in), out = x.shape, scales.shape[2]
    tile = min(ROWS, -(-rows // LEAST) * LEAST)
    x = jnp.pad(x, ((0, -rows % tile), (0, -fan_in % DEPTH)))
    deep = x.shape[1] // DEPTH
    step, width = divisor(deep, DEEP), WIDTH * divisor(codes.shape[1] // WIDTH, WIDE)
    folded = DEPTH // 2 if codes.dtype == jnp.uint8 else DEPTH
    factors, spread = [scales], _spread(scales, group, step, width)
    if zeros is not None:
        factors.append(zeros)
    specs = [
        pl.BlockSpec((tile, step * DEPTH), lambda m, n, k: (m, k)),
        pl.BlockSpec((step * folded, width), lambda m, n, k: (k, n)),
        *[spread] * len(factors),
    ]
    if row_scale is not None:
        factors.append(jnp.pad(row_scale, ((0, -rows % tile), (0, 0))))
        specs.append(pl.BlockSpec((tile, 1), lambda m, n, k: (m, 0)))
    whole = jnp.int32 if x.dtype == jnp.int8 else jnp.float32
    call = pl.pallas_call(
        partial(_block, group=group, shifted=zeros is not None, rounded=row_scale is not None),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=0,
            grid=(x.shape[0] // tile, -(-out // width), deep // step),
            in_specs=specs,
            out_specs=pl.BlockSpec((tile, width), lambda m, n, k: (m, n)),
            scratch_shapes=[pltpu.VMEM((tile, width), whole)],
        ),
        out_shape=jax.ShapeDtypeStruct((x.shape[0], out), dtype or x.dtype),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")),
        interpret=interpret,
    )
    return call(x, codes, *factors)[:rows]


def _spread(scales: jax.Array, group: int, step: int, width: int) -> pl.BlockSpec:
    """Of scales or zero points: those of the block of codes."""
    if group:
        return pl.BlockSpec((step, scales.shape[1], width), lambda m, n, k: (k, 0, n))
    return pl.BlockSpec((1, 1, width), lambda m, n, k: (0, 0, n))


def _block(x: Any, codes: Any, scales: Any, *rest: Any, group: int, shifted: bool, rounded: bool) -> None:
    """One step. With one scale per output, codes are multiplied, which the narrowest type holds exactly. Their scale
    comes after the sum."""
    zeros, (out, acc) = rest[0] if shifted else None, rest[-2:]
    k = pl.program_id(2)

    @pl.when(k == 0)
    def clear() -> None:
        acc[...] = jnp.zeros_like(acc)

    steps = x.shape[1] // DEPTH
    for s in range(steps):
        acc[...] += dot(x[:, s * DEPTH : (s + 1) * DEPTH], tile_of(codes, scales, zeros, s, steps, group, x.dtype))

    @pl.when(k == pl.num_programs(2) - 1)
    def store() -> None:
        total = acc[...].astype(jnp.float32)
        total = total if group else total * scales[0]
        out[...] = (total * rest[-3][...] if rounded else total).astype(out.dtype)


def tile_of(codes: Any, scales: Any, zeros: Any, s: int, steps: int, group: int, kind: Any) -> jax.Array:
    """Tile s of the block, as x is multiplied by it: numbers if there are groups, else codes without their scale."""
    high = codes.shape[0] // steps
    mine = codes[s * high : (s + 1) * high]
    if kind == jnp.int8:
        return mine
    at = s if group else 0
    factors = scales[at] if group else None
    return expand(mine, None if zeros is None else zeros[at], factors, group).astype(kind)
