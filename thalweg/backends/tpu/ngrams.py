"""Hashes of n-grams in 32 bits: this platform has no integers of 64."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from thalweg.backends.tpu.interop import in_jax
from thalweg.hal.op import Kernel
from thalweg.hal.ops.ngrams import LIMB, LIMBS


def hash_in_jax(ids: jax.Array, factors: jax.Array, rows: jax.Array, offsets: jax.Array, *, largest: int) -> jax.Array:
    """See the op. Products and their xor are in parts of `LIMB` bits. The remainder is found by long division, by as many bits
    at once as keep it within 31."""
    step = next(n for n in (6, 3, 2, 1) if largest << n < 1 << 31)
    mask, heads = (1 << LIMB) - 1, rows.shape[0] // (ids.shape[1] - 1)
    mixed, result = [jnp.zeros(ids.shape[0], jnp.int32)] * LIMBS, []
    for i in range(ids.shape[1]):
        carry = jnp.zeros(ids.shape[0], jnp.int32)
        for k in range(LIMBS):
            total = ids[:, i] * factors[i, k] + carry
            mixed[k], carry = mixed[k] ^ (total & mask), total >> LIMB
        if not i:
            continue
        most, rest = rows[(i - 1) * heads : i * heads], jnp.zeros((ids.shape[0], heads), jnp.int32)
        for limb in reversed(mixed):
            for shift in range(LIMB - step, -1, -step):
                rest = ((rest << step) + (limb[:, None] >> shift & (1 << step) - 1)) % most
        result.append(rest)
    return jnp.concatenate(result, 1) + offsets


HASH = Kernel("hash_ngrams", "limbs", in_jax(hash_in_jax), batch_invariant=True)
