"""Attention on JAX arrays: which implementations there are, and the one XLA compiles by itself.

The cache of a layer is [blocks, 2, block_tokens, kv_heads, head_dim] here; a Pallas kernel may want another layout.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from thalweg.backends.tpu.program import in_jax
from thalweg.hal.attention import AttentionBackend, AttnSpec
from thalweg.hal.kv import KVLayout
from thalweg.hal.step import SCRATCH, StepBatch

SPAN = 64
"""Keys taken at once, at least: a whole number of blocks."""


def backends(choice: str, interpret: bool) -> tuple[AttentionBackend, ...]:
    """In order of preference."""
    return (XlaAttention(),)


class XlaAttention(AttentionBackend):
    """Every token walks over its own sequence's keys, a span at a time, with a running softmax (Milakov & Gimelshein 2018).

    A span beyond a token's position adds exactly nothing, so a token's bits do not depend on how long its neighbours are.
    Reads keys once per token: right for decoding, wasteful for prompts. It is what runs where the kernel does not."""

    name = "xla"
    batch_invariant = True

    def supports(self, spec: AttnSpec) -> str | None:
        if spec.kind not in ("full", "window"):
            return f"runs kinds full and window, not {spec.kind}"
        if spec.kv_dtype not in ("", spec.dtype):
            return f"the cache holds {spec.dtype}, not {spec.kv_dtype}"
        if spec.heads % spec.kv_heads:
            return f"{spec.heads} heads do not share {spec.kv_heads} KV heads evenly"
        return None

    def layout(self, spec: AttnSpec, block_tokens: int) -> KVLayout:
        shape = (2, block_tokens, spec.kv_heads, spec.head_dim)
        return KVLayout(shape, spec.dtype, f"kv-token-head/{spec.dtype}/{'x'.join(map(str, shape))}")

    def plan(self, batch: StepBatch, *args: Any) -> dict[str, Any]:
        return {}

    def attend(self, q: Any, k: Any, v: Any, kv: Any, batch: StepBatch, group: int, spec: AttnSpec) -> tuple[Any, Any]:
        out, kv = in_jax(_attend)(
            q, k, v, kv, batch.block_tables[group], batch.token_seq, batch.positions, batch.slots, spec=spec
        )
        return out, kv


def _attend(
    q: jax.Array, k: jax.Array, v: jax.Array, kv: jax.Array, table: jax.Array, seq: jax.Array, position: jax.Array,
    slots: jax.Array, *, spec: AttnSpec,
) -> tuple[jax.Array, jax.Array]:  # fmt: skip
    size = kv.shape[2]
    real = slots[seq] != SCRATCH
    rows = jnp.where(real[:, None], table[seq], SCRATCH)  # [T, B]
    block = jnp.take_along_axis(rows, jnp.minimum(position // size, rows.shape[1] - 1)[:, None], 1)[:, 0]
    kv = kv.at[block, :, position % size].set(jnp.stack([k, v], 1))

    tokens, per = q.shape[0], spec.heads // spec.kv_heads
    step = max(1, SPAN // size)
    rows = jnp.pad(rows, ((0, 0), (0, -rows.shape[1] % step)), constant_values=SCRATCH)
    span = step * size
    query = q.astype(jnp.float32).reshape(tokens, spec.kv_heads, per, spec.head_dim) * spec.scale
    last = jnp.where(real, position, 0)
    first = jnp.maximum(last - spec.window + 1, 0) if spec.window else jnp.zeros_like(last)

    def one(i: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        top, total, acc = carry
        blocks = jax.lax.dynamic_slice_in_dim(rows, i * step, step, 1)
        at = i * span + jnp.arange(span)
        seen = (at <= last[:, None]) & (at >= first[:, None])
        held = jnp.moveaxis(kv[blocks], 2, 1).reshape(tokens, 2, span, spec.kv_heads, spec.head_dim)
        # What others left in these blocks, NaN included, must not reach a sum, not even times zero.
        held = jnp.where(seen[:, None, :, None, None], held, 0).astype(jnp.float32)
        scores = jnp.einsum("tgpd,tkgd->tgpk", query, held[:, 0])
        if spec.softcap:
            scores = spec.softcap * jnp.tanh(scores / spec.softcap)
        scores = jnp.where(seen[:, None, None, :], scores, -jnp.inf)
        highest = jnp.maximum(top, scores.max(-1))
        keep, weights = jnp.exp(top - highest), jnp.exp(scores - highest[..., None])
        return highest, total * keep + weights.sum(-1), acc * keep[..., None] + jnp.einsum("tgpk,tkgd->tgpd", weights, held[:, 1])

    shape = (tokens, spec.kv_heads, per)
    carry = (jnp.full(shape, jnp.finfo(jnp.float32).min), jnp.zeros(shape), jnp.zeros((*shape, spec.head_dim)))
    _, total, acc = jax.lax.fori_loop(first.min() // span, last.max() // span + 1, one, carry)
    out = (acc / total[..., None]).reshape(q.shape).astype(q.dtype)
    return jnp.where(real[:, None, None], out, 0), kv
