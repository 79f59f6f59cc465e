"""Attention by the kernel JAX ships (`ragged_paged_attention`), a further choice on hardware.

It needs a different cache, [blocks, block_tokens, 2 kv_heads, head_dim], keys and values of a head next to each
other. It cannot be interpreted. Tests therefore check two things: its definition, which JAX ships too, gives the right result
for the arguments here, and the kernel itself compiles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from thalweg.backends.tpu.attention import slot_mapping
from thalweg.backends.tpu.interop import in_jax
from thalweg.errors import ConfigError
from thalweg.hal.attention import AttentionBackend, AttnSpec
from thalweg.hal.kv import KVLayout
from thalweg.hal.step import SCRATCH, StepBatch, StepShape

try:
    from jax.experimental.pallas.ops.tpu.ragged_paged_attention.kernel import ragged_paged_attention as theirs

    ragged_paged_attention: Any = theirs
except ImportError:  # it is an experiment of theirs
    ragged_paged_attention = None

BYTES, QUERIES = 1 << 20, 32
"""Upper bound of the cache bytes read at once, and query tokens that share them."""
SCALARS = (1 << 20) - (1 << 16)
"""Bytes of scalar memory for the tables of a whole batch, which this kernel wants there at once."""


class ShippedAttention(AttentionBackend):
    """The write is XLA's scatter, the walk JAX's kernel."""

    name = "jax-ragged"

    def __init__(self, interpret: bool) -> None:
        self._interpret = interpret

    def supports(self, spec: AttnSpec) -> str | None:
        if ragged_paged_attention is None:
            return f"jax {jax.__version__} does not ship the kernel"
        if self._interpret:
            return "JAX's kernel runs on hardware alone: it cannot be interpreted"
        if spec.kind not in ("full", "window"):
            return f"runs kinds full and window, not {spec.kind}"
        if spec.dtype not in ("float32", "bfloat16"):
            return f"runs float32 and bfloat16, not {spec.dtype}"
        if spec.kv_dtype not in ("", spec.dtype):
            return f"has one scale for a whole cache of 8 bits, so it holds {spec.dtype}, not {spec.kv_dtype}"
        if spec.sinks:
            return "has no sinks"
        if spec.head_dim % 128:
            return f"head_dim {spec.head_dim} is not a multiple of 128"
        if spec.heads % spec.kv_heads:
            return f"{spec.heads} heads do not share {spec.kv_heads} KV heads evenly"
        words = 2 * spec.kv_heads // (1 if spec.dtype == "float32" else 2)
        return None if words in (1, 2, 4) or words % 8 == 0 else f"{spec.kv_heads} KV heads of {spec.dtype} do not fill tiles"

    def layout(self, spec: AttnSpec, block_tokens: int) -> KVLayout:
        shape = (block_tokens, 2 * spec.kv_heads, spec.head_dim)
        return KVLayout(shape, spec.dtype, f"token-head-kv/{spec.dtype}/{'x'.join(map(str, shape))}")

    def metadata(self, batch: StepBatch, group: int, spec: AttnSpec, shape: StepShape | None) -> Mapping[str, Any]:
        """i32: `starts` [S + 1], the row of each sequence's first token and where the last one ends, `lengths` [S],
        and `count` [1], how many sequences there are. Those of padding come last. ConfigError if scalar memory does
        not hold the tables."""
        if 4 * batch.block_tables[group].size > SCALARS:
            seqs, blocks = batch.block_tables[group].shape
            raise ConfigError(
                f"additional_config: attention jax holds every block table in scalar memory, and {seqs} of {blocks} blocks "
                f"are {4 * seqs * blocks} bytes of {SCALARS}: omit it, or use a larger --block-size, a shorter "
                "--max-model-len or a smaller --max-num-seqs"
            )
        real = batch.slots != SCRATCH
        query = np.where(real, batch.query, 0)
        starts = np.concatenate([[0], np.cumsum(query)]).astype(np.int32)
        lengths = np.where(real, batch.context + batch.query, 0).astype(np.int32)
        return {"starts": starts, "lengths": lengths, "count": real.sum(keepdims=True).astype(np.int32)}

    def attend(
        self, q: Any, k: Any, v: Any, kv: Any, batch: StepBatch, group: int, spec: AttnSpec, sinks: Any | None = None
    ) -> tuple[Any, Any]:
        run = in_jax(partial(attend, spec=spec, kernel=_kernel))
        rows = (batch.token_seq, batch.positions, batch.slots)
        out, kv = run(q, k, v, kv, batch.block_tables[group], *rows, dict(batch.metadata[group]))
        return out, kv


def attend(
    q: jax.Array, k: jax.Array, v: jax.Array, kv: jax.Array, table: jax.Array, seq: jax.Array, position: jax.Array,
    slots: jax.Array, plan: Mapping[str, jax.Array], *, spec: AttnSpec, kernel: Callable[..., jax.Array],
) -> tuple[jax.Array, jax.Array]:  # fmt: skip
    """Store, then the kernel's result, 0 in rows of padding. kernel: has the arguments of JAX's."""
    block, offset, real = slot_mapping(table, seq, position, slots, kv.shape[1])
    new = jnp.stack([k, v], 2).reshape(k.shape[0], 2 * k.shape[1], k.shape[2])
    kv = kv.at[block, offset].set(new)
    options = {"sm_scale": spec.scale, "sliding_window": spec.window or None, "soft_cap": spec.softcap or None}
    out = kernel(q, kv, plan["lengths"], table, plan["starts"], plan["count"], **options)
    out = jnp.pad(out, ((0, q.shape[0] - out.shape[0]), (0, 0), (0, 0)))  # its definition leaves padding out
    return jnp.where(real[:, None, None], out, 0), kv


def _kernel(q: jax.Array, kv: jax.Array, lengths: jax.Array, table: jax.Array, *more: jax.Array, **options: Any) -> jax.Array:
    """With given tile sizes: the kernel's own table asks which device this process has."""
    pages = max(1, min(table.shape[1], BYTES // (kv[0].size * kv.dtype.itemsize)))
    sizes = {"num_kv_pages_per_block": pages, "num_queries_per_block": min(QUERIES, q.shape[0])}
    out: jax.Array = ragged_paged_attention(q, kv, lengths, table, *more, **options, **sizes)
    return out
