"""Sampling without a sort. XLA sorts a vocabulary slowly, and compiles that for minutes. Truncation needs one
threshold per row. It is found by bisection over the bits of a float: 32 passes, each a sum over the row. By XLA every pass
reads the rows again. The Pallas kernels read them once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from thalweg.backends.tpu.interop import in_jax
from thalweg.backends.tpu.pallas import vocabulary
from thalweg.hal.noise import MULTIPLY, SALT_HIGH, SALT_LOW, STRIDE
from thalweg.hal.op import Kernel

MOST = 64
"""Logprobs found one by one. Above that a sort is faster."""


def _keys(x: jax.Array) -> jax.Array:
    """float32 -> uint32 in the same order. Both zeros are one value."""
    bits = lax.bitcast_convert_type(jnp.where(x == 0, 0.0, x), jnp.uint32)
    return jnp.where(bits >> 31 == 1, ~bits, bits | jnp.uint32(1 << 31))


def _largest(holds: Callable[[jax.Array], jax.Array], rows: int) -> jax.Array:
    """u32[rows, 1]: the largest value that `holds`, which is monotone: true up to some value (0 counts as true)."""

    def one(i: Any, found: jax.Array) -> jax.Array:
        more = found | (jnp.uint32(1 << 31) >> i.astype(jnp.uint32))
        return jnp.where(holds(more), more, found)

    return lax.fori_loop(0, 32, one, jnp.zeros((rows, 1), jnp.uint32))


def _truncate(logits: jax.Array, top_k: jax.Array, top_p: jax.Array, min_p: jax.Array) -> jax.Array:
    """See the op. The k-th largest is the largest value that k tokens reach. A value is cut if the values above it
    hold top_p. Of equals at the border, those with predecessors that reach it are cut."""
    rows, vocab = logits.shape
    top = logits.max(-1, keepdims=True)
    weights = jnp.exp(logits - top)
    keep = weights >= min_p[:, None]
    keys = _keys(jnp.where(keep, logits, -jnp.inf))

    want = jnp.where(top_k > 0, jnp.minimum(top_k, vocab), vocab)[:, None]
    least = _largest(lambda k: (keys >= k).sum(-1, keepdims=True) >= want, rows)
    keep &= keys >= least

    weights = jnp.where(keep, weights, 0.0)
    share = jnp.maximum(top_p[:, None], 1e-30) * weights.sum(-1, keepdims=True)

    def above(k: jax.Array) -> jax.Array:
        return jnp.where(keys > k, weights, 0.0).sum(-1, keepdims=True)

    cut = _largest(lambda k: above(k) >= share, rows)
    border = cut + 1
    same = keep & (keys == border)
    each = jnp.where(same, weights, 0.0).max(-1, keepdims=True)
    before = jnp.cumsum(same, -1, dtype=jnp.int32) - 1
    chosen = (keys > border) | (same & (above(border) + before * each < share))
    keep &= chosen | (top_p >= 1)[:, None]
    return jnp.where(keep, logits, -jnp.inf)


def _logprobs(
    logits: jax.Array, tokens: jax.Array, *, k: int, normalise: bool, best: Callable[[jax.Array, int], jax.Array]
) -> tuple[jax.Array, jax.Array, jax.Array]:  # fmt: skip
    """See the op. best: as `_one_by_one`."""
    values = jax.nn.log_softmax(logits, -1) if normalise else logits
    chosen = jnp.take_along_axis(values, tokens[:, None], 1)
    ranks = (values > chosen).sum(-1, dtype=jnp.int32) + 1
    found = jnp.concatenate([tokens[:, None], best(values, k)], 1) if k else tokens[:, None]
    return found, jnp.take_along_axis(values, found, 1), ranks


def _one_by_one(logits: jax.Array, k: int) -> jax.Array:
    """i32[S, k]: the ids of the k largest of each row, each taken out when it is found."""
    ids = jnp.arange(logits.shape[1], dtype=jnp.int32)

    def one(keys: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        best = jnp.argmax(keys, -1).astype(jnp.int32)
        return jnp.where(ids == best[:, None], 0, keys), best

    return lax.scan(one, _keys(logits), None, length=k)[1].T


def _few(spec: Mapping[str, Any]) -> str | None:
    return None if spec["k"] <= min(MOST, spec["vocab"]) else f"takes up to {MOST} one by one, not {spec['k']}"


def _draw(
    logits: jax.Array, temperature: jax.Array, seed: jax.Array, position: jax.Array, *, random: bool, interpret: bool
) -> jax.Array:  # fmt: skip
    """See the op. The other inputs of a row's noise, apart from the token, are hashed here."""
    k0, k1 = _row_keys(seed, position)
    noisy = temperature > 0
    return vocabulary.draw(logits, noisy, k0, k1, multiply=MULTIPLY, random=random, interpret=interpret)


def _row_keys(seed: jax.Array, position: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(k0, k1) of `thalweg.hal.noise`: seed i32[S, 2], position i32[S] -> i32[S] each."""
    low, high, at = (lax.bitcast_convert_type(a, jnp.uint32) for a in (seed[:, 0], seed[:, 1], position))
    k0 = _mix(_mix(_mix(low + jnp.uint32(SALT_LOW)) ^ high) + at)
    k1 = _mix(_mix(_mix(high + jnp.uint32(SALT_HIGH)) ^ low) ^ (at * jnp.uint32(STRIDE)))
    return lax.bitcast_convert_type(k0, jnp.int32), lax.bitcast_convert_type(k1, jnp.int32)


def _mix(x: jax.Array) -> jax.Array:
    """`thalweg.hal.noise.mix` on uint32."""
    x = (x ^ (x >> 16)) * jnp.uint32(MULTIPLY[0])
    x = (x ^ (x >> 15)) * jnp.uint32(MULTIPLY[1])
    return x ^ (x >> 16)


def _fits(spec: Mapping[str, Any]) -> str | None:
    most = vocabulary.LARGEST
    return None if spec.get("vocab", 0) <= most else f"holds rows of {most} tokens at most, not {spec['vocab']}"


KERNELS = (
    Kernel("truncate", "bisect", in_jax(_truncate)),
    Kernel("logprobs", "one-by-one", in_jax(partial(_logprobs, best=_one_by_one)), supports=_few),
)
"""Those that XLA compiles."""


def pallas(interpret: bool) -> tuple[Kernel, ...]:
    """Preferred to them."""
    cut, draw = (in_jax(partial(f, interpret=interpret)) for f in (vocabulary.truncate, _draw))
    found = in_jax(partial(_logprobs, best=partial(vocabulary.best, interpret=interpret)))
    return (
        Kernel("truncate", "pallas-bisect", cut, supports=_fits),
        Kernel("sample", "pallas-draw", draw),
        Kernel("logprobs", "pallas-best", found, supports=lambda spec: _fits(spec) or _few(spec)),
    )
