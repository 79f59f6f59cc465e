"""The gated delta rule as a loop that XLA compiles once: the op's body, traced, would be as long as the step has tokens."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from thalweg.backends.tpu.interop import in_jax
from thalweg.hal.op import Kernel
from thalweg.hal.ops.delta import EPS


def _rule(
    q: jax.Array, k: jax.Array, v: jax.Array, decay: jax.Array, share: jax.Array, held: jax.Array, table: jax.Array,
    context: jax.Array, query: jax.Array, last_row: jax.Array, token_seq: jax.Array,
) -> tuple[jax.Array, jax.Array]:  # fmt: skip
    """See the op. A block is read in the step that begins its sequence, before anything is written to it: what others write
    to is theirs alone."""
    groups = v.shape[1] // q.shape[1]
    q, k = (jnp.repeat(_unit(x), groups, axis=1) for x in (q, k))
    q, wide = q * k.shape[-1] ** -0.5, v.astype(jnp.float32)
    begins = jnp.arange(v.shape[0]) == (last_row - query + 1)[token_seq]
    each = (q, k, wide, decay, share, begins, (context == 0)[token_seq], table[token_seq, 0], table[token_seq, 1])

    def one(carry: tuple[jax.Array, jax.Array], x: tuple[jax.Array, ...]) -> tuple[Any, jax.Array]:
        (state, held), (q, k, v, decay, share, begins, fresh, source, target) = carry, x
        state = jnp.where(begins, jnp.where(fresh, 0.0, held[source]), state) * decay[:, None, None]
        seen = (state * k[..., None]).sum(1)
        state = state + k[..., None] * (share[:, None] * (v - seen))[:, None]
        return (state, held.at[target].set(state)), (state * q[..., None]).sum(1)

    (_, held), out = lax.scan(one, (jnp.zeros_like(held[0]), held), each)
    return out.astype(v.dtype), held


def _unit(x: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    return wide * lax.rsqrt((wide * wide).sum(-1, keepdims=True) + EPS)


RULE = Kernel("delta_rule", "scan", in_jax(_rule))
