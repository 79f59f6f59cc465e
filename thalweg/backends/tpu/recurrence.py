"""Recurrences as loops that XLA compiles once: the bodies of their ops, traced, would be as long as the step has tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from thalweg.backends.tpu.interop import in_jax
from thalweg.hal.op import Kernel
from thalweg.hal.ops.delta import EPS

Step = Callable[[jax.Array, tuple[Any, ...]], tuple[jax.Array, jax.Array]]
"""(a state before a token, the token's inputs) -> (the state after it, the token's output)."""


def _scan(
    step: Step, each: tuple[jax.Array, ...], held: jax.Array, table: jax.Array, context: jax.Array, query: jax.Array,
    last_row: jax.Array, token_seq: jax.Array,
) -> tuple[jax.Array, jax.Array]:  # fmt: skip
    """each: arrays with a row for each token. A block is read in the step that begins its sequence, before any write to it.
    Blocks that others write to are only theirs."""
    begins = jnp.arange(token_seq.shape[0]) == (last_row - query + 1)[token_seq]
    where = (begins, (context == 0)[token_seq], table[token_seq, 0], table[token_seq, 1])

    def one(carry: tuple[jax.Array, jax.Array], x: Any) -> tuple[Any, jax.Array]:
        (state, held), (brings, (begins, fresh, source, target)) = carry, x
        state, out = step(jnp.where(begins, jnp.where(fresh, 0.0, held[source]), state), brings)
        return (state, held.at[target].set(state)), out

    (_, held), out = lax.scan(one, (jnp.zeros_like(held[0]), held), (each, where))
    return out, held


def _rule(
    q: jax.Array, k: jax.Array, v: jax.Array, decay: jax.Array, share: jax.Array, held: jax.Array, *batch: jax.Array
) -> tuple[jax.Array, jax.Array]:
    groups = v.shape[1] // q.shape[1]
    q, k = (jnp.repeat(_unit(x), groups, axis=1) for x in (q, k))
    q, wide = q * k.shape[-1] ** -0.5, v.astype(jnp.float32)

    def step(state: jax.Array, x: tuple[Any, ...]) -> tuple[jax.Array, jax.Array]:
        q, k, v, decay, share = x
        state = state * decay.reshape(decay.shape[0], -1, 1)  # a number for each head, or for each of its rows
        seen = (state * k[..., None]).sum(1)
        state = state + k[..., None] * (share[:, None] * (v - seen))[:, None]
        return state, (state * q[..., None]).sum(1)

    out, held = _scan(step, (q, k, wide, decay, share), held, *batch)
    return out.astype(v.dtype), held


def _unit(x: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    return wide * lax.rsqrt((wide * wide).sum(-1, keepdims=True) + EPS)


def _selective(
    x: jax.Array, step: jax.Array, b: jax.Array, c: jax.Array, gate: jax.Array, log_rate: jax.Array, bias: jax.Array,
    skip: jax.Array, held: jax.Array, *batch: jax.Array,
) -> tuple[jax.Array, jax.Array]:  # fmt: skip
    wide, b, c, gate = (a.astype(jnp.float32) for a in (x, b, c, gate))
    far, rate = jax.nn.softplus(step.astype(jnp.float32) + bias), -jnp.exp(log_rate).T

    def one(state: jax.Array, brings: tuple[Any, ...]) -> tuple[jax.Array, jax.Array]:
        far, more, b, c = brings
        state = state * jnp.exp(rate * far) + b[:, None] * more
        return state, (state * c[:, None]).sum(0)

    out, held = _scan(one, (far, far * wide, b, c), held, *batch)
    return ((out + skip * wide) * jax.nn.silu(gate)).astype(x.dtype), held


def _ssd(
    x: jax.Array, step: jax.Array, b: jax.Array, c: jax.Array, log_rate: jax.Array, bias: jax.Array, skip: jax.Array,
    held: jax.Array, *batch: jax.Array, low: float = 0.0, high: float = float("inf"),
) -> tuple[jax.Array, jax.Array]:  # fmt: skip
    far = jnp.clip(jax.nn.softplus(step.astype(jnp.float32) + bias), low, high)
    wide, decay, groups = x.astype(jnp.float32), jnp.exp(-jnp.exp(log_rate) * far), x.shape[1] // b.shape[1]
    b, c = (jnp.repeat(a.astype(jnp.float32), groups, axis=1) for a in (b, c))

    def one(state: jax.Array, brings: tuple[Any, ...]) -> tuple[jax.Array, jax.Array]:
        decay, more, b, c = brings
        state = state * decay[:, None, None] + b[..., None] * more[:, None]
        return state, (state * c[..., None]).sum(1)

    out, held = _scan(one, (decay, far[..., None] * wide, b, c), held, *batch)
    return (out + skip[:, None] * wide).astype(x.dtype), held


KERNELS = tuple(
    Kernel(name, "scan", in_jax(f))
    for name, f in (("delta_rule", _rule), ("channel_delta_rule", _rule), ("selective_scan", _selective), ("ssd_scan", _ssd))
)
