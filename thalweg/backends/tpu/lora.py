"""Low-rank adapters on JAX arrays: each row of a small step gathers its own adapter. Its number is data, so one program serves
any. Steps of many rows run the op's body."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from thalweg.backends.tpu.interop import in_jax
from thalweg.hal.op import Kernel
from thalweg.hal.ops.lora import NONE, lora_add

DTYPES = ("float32", "bfloat16")
FEW = 64
"""Rows up to which every row reads its adapter separately."""


def _add(y: Any, x: Any, *arrays: Any, rows: tuple[int, ...]) -> Any:
    run = in_jax(_gather_and_add) if x.shape[0] <= FEW else lora_add.reference
    return run(y, x, *arrays, rows=rows)


def _gather_and_add(
    y: jax.Array, x: jax.Array, slots: jax.Array, order: jax.Array, starts: jax.Array, a: jax.Array, b: jax.Array,
    ranks: jax.Array, *, rows: tuple[int, ...],
) -> jax.Array:  # fmt: skip
    rank, parts = b.shape[1], []
    held = jnp.arange(rank)[None, None, :] < jnp.where(slots[:, None] == NONE, 0, ranks[slots])[:, :, None]
    down = jnp.where(held.reshape(*held.shape[:1], -1, 1), a[slots], 0)
    low = multiply("th,trh->tr", x, down).reshape(held.shape)
    first = 0
    for i, count in enumerate(rows):
        up = jnp.where(held[:, i, :, None], b[slots, :, first : first + count], 0)
        part = y[:, first : first + count]
        summed = (part.astype(jnp.float32) + multiply("tr,trn->tn", low[:, i], up)).astype(y.dtype)
        parts.append(jnp.where(held[:, i, :1], summed, part))
        first += count
    return jnp.concatenate(parts, 1)


def multiply(how: str, x: jax.Array, w: jax.Array) -> jax.Array:
    """Sums in float32. Where both are, of exact products."""
    precision = jax.lax.Precision.HIGHEST if jnp.float32 in (x.dtype, w.dtype) else None
    return jnp.einsum(how, x, w, preferred_element_type=jnp.float32, precision=precision)


def _supports(spec: Mapping[str, Any]) -> str | None:
    return None if spec["dtype"] in DTYPES else f"runs {', '.join(DTYPES)}, not {spec['dtype']}"


ADD = Kernel("lora_add", "xla-gathered", _add, _supports)
