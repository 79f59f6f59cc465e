"""Products in which every row has its own matrix, one of many: the experts of a mixture. Rows come sorted by matrix,
each matrix's rows in whole tiles. A tile thus has one matrix, known before it is read (`tiles` says how they lie).

How many tiles there are depends on the rows, so there are as many steps as there could be. Those without a tile name
the block that the last one left. They read nothing, and they write nothing: rows beyond the last tile hold anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from thalweg.backends.tpu.pallas.quantised_matmul import tile_of
from thalweg.backends.tpu.pallas.tiles import DEPTH, LANES, WIDTH, divisor, dot

BYTES = 1 << 20
"""Upper bound of a block of one matrix. Two matrices of two blocks each leave room for the rows too."""
LEAST, MOST = 16, 256
"""Rows of a tile."""


def tile_rows(rows: int, groups: int) -> int:
    """Rows of a tile, where `rows` are spread over `groups` matrices: twice the mean, so that most need one tile."""
    mean = -(-2 * rows // groups)
    return min(MOST, max(LEAST, 1 << (mean - 1).bit_length()))


def place(groups: jax.Array, count: int, tile: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """groups i32[R], the matrix of each row (of `count`) -> (where each row goes i32[R], the matrix of each tile
    i32[tiles], how many tiles have rows i32[1]). tiles = as many as there could be."""
    rows = groups.shape[0]
    most = min(rows, rows // tile + count)
    mine = groups[:, None] == jnp.arange(count, dtype=jnp.int32)
    each = mine.sum(0, dtype=jnp.int32)
    nth = jnp.where(mine, jnp.cumsum(mine, 0, dtype=jnp.int32), 0).sum(1) - 1
    tiles = (each + tile - 1) // tile
    ends = jnp.cumsum(tiles, dtype=jnp.int32)
    owner = (jnp.arange(most, dtype=jnp.int32)[:, None] >= ends).sum(1, dtype=jnp.int32)
    last = jnp.max(jnp.where(each > 0, jnp.arange(count, dtype=jnp.int32), 0))
    return (ends - tiles)[groups] * tile + nth, jnp.minimum(owner, last), ends[-1:]


def gate_up_matmul(
    x: jax.Array, weight: Mapping[str, jax.Array], owner: jax.Array, used: jax.Array, *, act: Any, group: int,
    interpret: Any = False,
) -> jax.Array:  # fmt: skip
    """act(x @ gate) * (x @ up): x [tiles * rows, in], rows by tile as `place` has them -> [tiles * rows, out].

    weight "codes" [2 count, in, out] (in halved where two share a byte), of each matrix its gate, then its up.
    "scales" and "zeros" [2 count, deep, groups, out]. in and out are padded, and scales are 0 in the padding. act: of
    float32 values, 0 of 0. Products are rounded to x's dtype, and so is the result of act."""
    return _launch(x, weight, owner, used, (0, 1), act, group, interpret)


def product(
    x: jax.Array, weight: Mapping[str, jax.Array], owner: jax.Array, used: jax.Array, *, group: int, interpret: Any = False
) -> jax.Array:  # fmt: skip
    """x @ its matrix, of weights as those of `gate_up_matmul` -> [tiles * rows, 2 out]. The left half of a matrix's outputs
    comes first, then the right one, each padded."""
    return _launch(x, weight, owner, used, (0,), None, group, interpret)


def _launch(
    x: jax.Array, weight: Mapping[str, jax.Array], owner: jax.Array, used: jax.Array, parts: tuple[int, ...], act: Any,
    group: int, interpret: Any,
) -> jax.Array:  # fmt: skip
    """parts: (0, 1) multiplies by both halves at once, (0,) by each in sequence, side by side in the result."""
    codes, tiles = weight["codes"], owner.shape[0]
    factors = [weight[name] for name in ("scales", "zeros") if name in weight]
    folded = 2 if codes.dtype == jnp.uint8 else 1
    x = jnp.pad(x, ((0, 0), (0, codes.shape[1] * folded - x.shape[1])))
    unit, wide = (DEPTH, WIDTH) if factors else (LANES, LANES)
    width = wide * divisor(codes.shape[2] // wide, 2 * WIDTH // wide)
    step = unit * divisor(x.shape[1] // unit, max(1, BYTES * folded // (width * codes.dtype.itemsize * unit)))
    half, deep, tile = codes.shape[2] // width, x.shape[1] // step, x.shape[0] // tiles
    right = half * (3 - len(parts)) - 1

    def index(part: int, i: Any, n: Any, k: Any, owner: Any, used: Any) -> tuple[Any, Any, Any]:
        """(matrix, block along the inputs, block along the outputs). Without a tile, those of the last step."""
        n, k = jnp.where(i < used[0], n, right), jnp.where(i < used[0], k, deep - 1)
        return 2 * owner[i] + part + lax.div(n, half), k, lax.rem(n, half)

    def codes_at(part: int, *step: Any) -> tuple[Any, ...]:
        return index(part, *step)

    def factors_at(part: int, *step: Any) -> tuple[Any, ...]:
        matrix, k, n = index(part, *step)
        return matrix, k if group else 0, 0, n

    specs = []
    for part in parts:
        specs.append(pl.BlockSpec((1, step // folded, width), partial(codes_at, part)))
        for a in factors:
            specs.append(pl.BlockSpec((1, step // DEPTH if group else 1, a.shape[2], width), partial(factors_at, part)))
    call = pl.pallas_call(
        partial(_block, act=act, parts=len(parts), factors=len(factors), steps=step // unit if factors else 1, group=group),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(tiles, right + 1, deep),
            in_specs=[pl.BlockSpec((tile, step), lambda i, n, k, *more: (i, index(0, i, n, k, *more)[1])), *specs],
            out_specs=pl.BlockSpec((tile, width), lambda i, n, k, *_: (i, n)),
            scratch_shapes=[pltpu.VMEM((tile, width), jnp.float32) for _ in parts],
        ),
        out_shape=jax.ShapeDtypeStruct((x.shape[0], (right + 1) * width), x.dtype),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("arbitrary", "arbitrary", "arbitrary")),
        interpret=interpret,
    )
    return call(owner, used, x, *[a for _ in parts for a in (codes, *factors)])


def _block(owner: Any, used: Any, x: Any, *rest: Any, act: Any, parts: int, factors: int, steps: int, group: int) -> None:
    """One step of one tile. parts: how many matrices it is multiplied by, each with its codes and its scales and zeros."""
    weights, out, sums = rest[: parts * (1 + factors)], rest[-1 - parts], rest[-parts:]
    k = pl.program_id(2)

    @pl.when(pl.program_id(0) < used[0])
    def some() -> None:
        for p, acc in enumerate(sums):
            codes, scales, zeros = (*weights[p * (1 + factors) : (p + 1) * (1 + factors)], None, None)[:3]

            @pl.when(k == 0)
            def clear(acc: Any = acc) -> None:
                acc[...] = jnp.zeros_like(acc)

            deep = x.shape[1] // steps
            for s in range(steps):
                if factors:
                    there = None if zeros is None else zeros.at[0]
                    weight = tile_of(codes.at[0], scales.at[0], there, s, steps, group, x.dtype)
                else:
                    weight = codes[0]
                acc[...] += dot(x[:, s * deep : (s + 1) * deep], weight)

        @pl.when(k == pl.num_programs(2) - 1)
        def store() -> None:
            result = []
            for p, acc in enumerate(sums):
                total = acc[...]
                if factors and not group:
                    total = total * weights[p * (1 + factors) + 1][0, 0]
                result.append(total.astype(out.dtype))
            if act is not None:
                gate, up = result
                gate = act(gate.astype(jnp.float32)).astype(out.dtype).astype(jnp.float32)
                result = [(gate * up.astype(jnp.float32)).astype(out.dtype)]
            out[...] = result[0]


def activation(name: str) -> Any:
    """silu, gelu or gelu_tanh of float32 values."""
    if name == "silu":
        return lambda x: x / (1.0 + jnp.exp(-x))
    if name == "gelu_tanh":
        return lambda x: 0.5 * x * (1.0 + jnp.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))
    return lambda x: 0.5 * x * (1.0 + lax.erf(x * 0.7071067811865476))
