"""Weights as tiles: how a matrix lies in memory for kernels that multiply by it, and a tile of codes as numbers
again.

A matrix is kept inputs first, [in, out], padded to whole tiles of DEPTH inputs and WIDTH outputs, as the matrix unit
needs it. Of 4-bit codes a byte holds one input of the tile's first half (low bits) and one of its second half. Unpacking thus
joins two halves and moves nothing. Scales and zero points are [tiles along the inputs, groups of a tile, out].

A launch reads blocks of several tiles: a step of a pipeline costs as much as reading some 200 kB, whatever it does.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

DEPTH, WIDTH = 256, 256
"""Inputs and outputs of a tile of codes."""
LANES = 128
"""Multiple that dense matrices are padded to."""
HALF = 8
"""Offset at which 4-bit codes of a symmetric format are stored above their value."""


def pack_codes(codes: jax.Array, bits: int) -> jax.Array:
    """[out, in] -> [in, out] padded to whole tiles. 4-bit integers (0 .. 15) two in a byte: [in / 2, out]."""
    wide = pad_to_multiples(codes.T, DEPTH, WIDTH)
    if bits == 8:
        return wide
    low, high = jnp.split(wide.astype(jnp.uint8).reshape(-1, 2, DEPTH // 2, wide.shape[1]).swapaxes(0, 1), 2)
    return (low | (high << 4)).reshape(wide.shape[0] // 2, wide.shape[1])


def pack_factors(groups: jax.Array, group: int, fan_in: int) -> jax.Array:
    """Scales or zero points [groups, out], `group` inputs each (0: one for all) -> float32 [tiles along the inputs, groups of a
    tile, out], or [1, 1, out] for one group."""
    wide = groups.astype(jnp.float32)
    if not group:
        return wide[:1][None]
    each = DEPTH // group
    return pad_to_multiples(wide, each * -(-fan_in // DEPTH), 1).reshape(-1, each, wide.shape[1])


def pad_to_multiples(a: jax.Array, rows: int, columns: int) -> jax.Array:
    """a [R, C] with zeros up to multiples of `rows` and `columns`."""
    return jnp.pad(a, ((0, -a.shape[0] % rows), (0, -a.shape[1] % columns)))


def divisor(n: int, most: int) -> int:
    """The largest number up to `most` that divides n."""
    return next(d for d in range(min(n, most), 0, -1) if n % d == 0)


def expand(codes: Any, zeros: Any, scales: Any, group: int) -> jax.Array:
    """One tile, in float32: codes [DEPTH, W] (bytes that hold two: [DEPTH / 2, W]), the rest [groups of the tile, W]
    or None -> (codes - zeros) * scales [DEPTH, W]. Without zeros, codes that share a byte are HALF above their value."""
    if codes.dtype == jnp.uint8:
        both = codes.astype(jnp.int32)
        weight = jnp.concatenate([both & 15, lax.shift_right_logical(both, 4)], 0).astype(jnp.float32)
        weight = weight if zeros is not None else weight - HALF
    else:
        weight = codes.astype(jnp.float32)
    if zeros is not None:
        weight = weight - _by_input(zeros, group)
    return weight if scales is None else weight * _by_input(scales, group)


def _by_input(groups: jax.Array, group: int) -> jax.Array:
    """[groups, W] -> something that broadcasts against [DEPTH, W]."""
    each, width = groups.shape
    if each == 1:
        return groups
    return jnp.concatenate([jnp.broadcast_to(groups[g : g + 1], (group, width)) for g in range(each)], 0)


def dot(a: jax.Array, b: jax.Array) -> jax.Array:
    """a [M, K] by b [K, N]: integers summed as int32, others in float32. float32 operands are multiplied as such."""
    exact = lax.Precision.HIGHEST if a.dtype == jnp.float32 else lax.Precision.DEFAULT
    total = jnp.int32 if jnp.issubdtype(a.dtype, jnp.integer) else jnp.float32
    return jnp.dot(a, b, precision=exact, preferred_element_type=total)
