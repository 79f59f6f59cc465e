"""Mixtures of experts on JAX arrays: routing by XLA, the experts' layers by the Pallas kernels or by those JAX ships, low-rank
adapters of experts by gathers between these."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from thalweg.backends.tpu import matmul
from thalweg.backends.tpu.interop import in_jax
from thalweg.backends.tpu.lora import FEW, multiply
from thalweg.backends.tpu.pallas import grouped_matmul
from thalweg.backends.tpu.pallas.tiles import LANES, pad_to_multiples
from thalweg.hal.op import Kernel, Pack
from thalweg.hal.ops.activation import ACTIVATIONS
from thalweg.hal.ops.lora import NONE
from thalweg.hal.weights import DENSE, QTensor, WeightFormat

try:
    from jax.experimental.pallas.ops.tpu.megablox.gmm import gmm as theirs

    gmm: Any = theirs
except ImportError:  # it is an experiment of theirs
    gmm = None

DTYPES = ("float32", "bfloat16")
MEGABLOX, LEAST = (128, 1024, 512), 16
"""Upper bounds of the shipped kernel's tiles: rows (a multiple of LEAST), inputs, outputs."""


def kernels(interpret: bool) -> tuple[Kernel, ...]:
    """Of `experts`, each with that of `lora_experts` that shares its weights, in order of preference. The shipped product of
    groups comes after ours. It supports only dense weights, and a tile of rows that experts share is multiplied by each in
    turn."""
    runs = (_experts, _adapted_experts, _megablox, _adapted_megablox)
    ours, adapted, theirs, both = (in_jax(partial(f, interpret=interpret)) for f in runs)
    pack = Pack(_pack)
    return (
        Kernel("experts", "pallas-grouped", ours, supports=_supports, pack=pack),
        Kernel("lora_experts", "pallas-grouped", adapted, supports=_supports, pack=pack),
        Kernel("experts", "jax-megablox", theirs, supports=_dense),
        Kernel("lora_experts", "jax-megablox", both, supports=_dense),
    )


def _supports(spec: Mapping[str, Any]) -> str | None:
    if not spec.get("gated", True):
        return "runs experts with gates"
    if spec.get("biased") or spec.get("down_biased"):
        return "adds no biases"
    if spec.get("elsewhere"):
        return "computes every choice here"
    if spec["act"] not in ACTIVATIONS:
        return f"runs {', '.join(ACTIVATIONS)}, not {spec['act']}"
    if spec["dtype"] not in DTYPES:
        return f"runs {', '.join(DTYPES)}, not {spec['dtype']}"
    return _unpackable(spec["weight"]) or _unpackable(spec["down_weight"])


def _unpackable(format: WeightFormat) -> str | None:
    if format == DENSE:
        return None
    return f"multiplies in the model's dtype, not in {format.act}" if format.act else matmul.unpackable(format)


def _dense(spec: Mapping[str, Any]) -> str | None:
    if gmm is None:
        return f"jax {jax.__version__} does not ship the kernel"
    other = next((f for f in (spec["weight"], spec["down_weight"]) if f != DENSE), None)
    return _supports(spec) if other is None else f"runs dense weights, not {other}"


def _pack(w: QTensor) -> dict[str, jax.Array]:
    """In the kernel's form. The outputs of each expert are cut in two: gate and up, or the halves of the down
    projection. Each half is padded to whole tiles."""
    count = w.matrices
    out, fan_in = w.shape[0] // (2 * count), w.shape[1]
    halves = {name: jnp.asarray(a) for name, a in w.data.items()}
    if w.format == DENSE:
        matrices = halves["weight"].reshape(2 * count, out, fan_in).swapaxes(1, 2)
        return {"codes": jax.vmap(lambda a: pad_to_multiples(a, LANES, LANES))(matrices)}
    if w.format.group == -1:
        halves["scales"] = jnp.broadcast_to(halves["scales"], (w.shape[0], 1))

    def one(data: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        result = matmul.pack(QTensor(w.format, (out, fan_in), data))
        wide = result["codes"].shape[1] - out
        return {n: a if n == "codes" else jnp.pad(a, ((0, 0), (0, 0), (0, wide))) for n, a in result.items()}

    return jax.vmap(one)({n: a.reshape(2 * count, out, -1) for n, a in halves.items()})


def _experts(
    x: jax.Array, ids: jax.Array, weights: jax.Array, gate_up: Mapping[str, jax.Array], down: Mapping[str, jax.Array], *,
    experts: int, act: str = "silu", group: int = 0, down_group: int = 0, interpret: bool = False,
) -> jax.Array:  # fmt: skip
    """See the op."""
    pairs, hidden = ids.size, x.shape[1]
    tile, group, down_group = grouped_matmul.tile_rows(pairs, experts), max(group, 0), max(down_group, 0)
    there, owner, used = grouped_matmul.place(ids.reshape(-1), experts, tile)
    rows = _spread(x, ids, there, owner.shape[0] * tile)
    chosen = grouped_matmul.activation(act)
    middle = grouped_matmul.gate_up_matmul(rows, gate_up, owner, used, act=chosen, group=group, interpret=interpret)
    result = grouped_matmul.product(middle, down, owner, used, group=down_group, interpret=interpret)[there]
    result = result.reshape(pairs, 2, -1)[..., : hidden // 2].reshape(pairs, hidden)
    return _together(result, weights).astype(x.dtype)


def _adapted_experts(
    x: jax.Array, ids: jax.Array, weights: jax.Array, gate_up: Mapping[str, jax.Array], down: Mapping[str, jax.Array],
    *adapters: jax.Array, experts: int, act: str = "silu", group: int = 0, down_group: int = 0, interpret: bool = False,
) -> jax.Array:  # fmt: skip
    """See `lora_experts`."""
    tile = grouped_matmul.tile_rows(ids.size, experts)
    there, owner, used = grouped_matmul.place(ids.reshape(-1), experts, tile)

    def multiply_by(weight: Mapping[str, jax.Array], group: int, outputs: int, rows: jax.Array) -> jax.Array:
        laid = jnp.zeros((owner.shape[0] * tile, rows.shape[1]), rows.dtype).at[there].set(rows, unique_indices=True)
        result = grouped_matmul.product(laid, weight, owner, used, group=max(group, 0), interpret=interpret)[there]
        return result.reshape(ids.size, 2, -1)[..., : outputs // 2].reshape(ids.size, outputs)

    first = partial(multiply_by, gate_up, group, adapters[2].shape[3])
    second = partial(multiply_by, down, down_group, x.shape[1])
    return _adapt(first, second, act, x, ids, weights, *adapters)


def _megablox(
    x: jax.Array, ids: jax.Array, weights: jax.Array, gate_up: jax.Array, down: jax.Array, *, experts: int, act: str = "silu",
    group: int = 0, down_group: int = 0, interpret: bool = False,
) -> jax.Array:  # fmt: skip
    """See the op. group, down_group: of quantised weights, which are refused."""
    there, rows, product = _group_rows(ids, experts, interpret)
    gate, up = jnp.split(product(_spread(x, ids, there, rows), gate_up), 2, -1)
    middle = grouped_matmul.activation(act)(gate.astype(jnp.float32)).astype(x.dtype) * up
    return _together(product(middle, down)[there], weights).astype(x.dtype)


def _adapted_megablox(
    x: jax.Array, ids: jax.Array, weights: jax.Array, gate_up: jax.Array, down: jax.Array, *adapters: jax.Array, experts: int,
    act: str = "silu", group: int = 0, down_group: int = 0, interpret: bool = False,
) -> jax.Array:  # fmt: skip
    """See `lora_experts`, and `_megablox`."""
    there, count, product = _group_rows(ids, experts, interpret)

    def multiply_by(weight: jax.Array, rows: jax.Array) -> jax.Array:
        laid = jnp.zeros((count, rows.shape[1]), rows.dtype).at[there].set(rows, unique_indices=True)
        return product(laid, weight)[there]

    return _adapt(partial(multiply_by, gate_up), partial(multiply_by, down), act, x, ids, weights, *adapters)


def _group_rows(ids: jax.Array, experts: int, interpret: bool) -> tuple[jax.Array, int, Callable[..., jax.Array]]:
    """(where each pair's row goes, rows, the shipped product of rows that lie so)."""
    pairs = ids.size
    there, _, _ = grouped_matmul.place(ids.reshape(-1), experts, 1)
    tile = min(MEGABLOX[0], -(-pairs // LEAST) * LEAST)
    each = (ids.reshape(-1)[:, None] == jnp.arange(experts)).sum(0, dtype=jnp.int32)

    def product(rows: jax.Array, weight: jax.Array) -> jax.Array:
        matrices = weight.reshape(experts, -1, weight.shape[1])
        tiling = (tile, min(MEGABLOX[1], matrices.shape[2]), min(MEGABLOX[2], matrices.shape[1]))
        return gmm(rows, matrices, each, rows.dtype, tiling, transpose_rhs=True, interpret=interpret)

    return there, -(-pairs // tile) * tile, product


def _adapt(
    first: Callable[[jax.Array], jax.Array], second: Callable[[jax.Array], jax.Array], act: str, x: jax.Array, ids: jax.Array,
    weights: jax.Array, slots: jax.Array, gate_up_a: jax.Array, gate_up_b: jax.Array, down_a: jax.Array, down_b: jax.Array,
    ranks: jax.Array,
) -> jax.Array:  # fmt: skip
    """`lora_experts`. first, second: the products with gate and up, and with down, of a row for each pair."""
    token = jnp.arange(ids.size, dtype=jnp.int32) // ids.shape[1]
    rows, slot, expert = x[token], slots[token], ids.reshape(-1)
    result = _add_low_rank(first(rows), rows, slot, expert, gate_up_a, gate_up_b, ranks[..., :2])
    gate, up = jnp.split(result, 2, -1)
    gate = grouped_matmul.activation(act)(gate.astype(jnp.float32)).astype(x.dtype)
    middle = (gate.astype(jnp.float32) * up.astype(jnp.float32)).astype(x.dtype)
    result = _add_low_rank(second(middle), middle, slot, expert, down_a, down_b, ranks[..., 2:])
    return _together(result, weights).astype(x.dtype)


def _add_low_rank(
    y: jax.Array, x: jax.Array, slot: jax.Array, expert: jax.Array, a: jax.Array, b: jax.Array, ranks: jax.Array
) -> jax.Array:  # fmt: skip
    """y [P, N] + B (A x) of each pair, which gathers its own matrices, so many pairs at a time."""
    (*_, rank, outputs), parts = b.shape, ranks.shape[-1]

    def one(pair: tuple[jax.Array, ...]) -> jax.Array:
        y, x, slot, expert = pair
        count = jnp.where(slot == NONE, 0, ranks[slot, expert])
        held = jnp.arange(rank) < count[:, None]  # [parts, rank]
        low = jnp.where(held, multiply("h,prh->pr", x, a[slot, expert].reshape(parts, rank, -1)), 0)
        up = jnp.where(held.T[..., None], b[slot, expert].reshape(rank, parts, -1), 0)
        added = multiply("pr,rpn->pn", low, up).reshape(outputs)
        summed = (y.astype(jnp.float32) + added).astype(y.dtype)
        return jnp.where(jnp.repeat(count > 0, outputs // parts), summed, y)

    return lax.map(one, (y, x, slot, expert), batch_size=FEW)


def _spread(x: jax.Array, ids: jax.Array, there: jax.Array, rows: int) -> jax.Array:
    """x [T, H] -> [rows, H]: in row there[p] the token of pair p, anything in rows of no pair."""
    token = jnp.arange(there.shape[0], dtype=jnp.int32) // ids.shape[1]
    return x[jnp.zeros(rows, jnp.int32).at[there].set(token, unique_indices=True)]


def _together(result: jax.Array, weights: jax.Array) -> jax.Array:
    """made [pairs, H], weights f32[T, k] -> f32[T, H], the weighted sum over each token's pairs."""
    return (result.reshape(*weights.shape, -1).astype(jnp.float32) * weights[..., None]).sum(1)


def _route(
    logits: jax.Array, bias: jax.Array | None = None, *, k: int, scores: str, renormalise: bool, scale: float = 1.0,
    groups: int = 1, top_groups: int = 1, group_best: int = 2,
) -> tuple[jax.Array, jax.Array]:  # fmt: skip
    """See the op."""
    value = jax.nn.softmax(logits, -1) if scores == "softmax" else jax.nn.sigmoid(logits)
    by = value if bias is None else value + bias
    if groups > 1:
        parts = by.reshape(by.shape[0], groups, -1)
        best = lax.top_k(parts, group_best)[0].sum(-1)
        chosen = lax.top_k(best, top_groups)[1]
        keep = (chosen[:, :, None] == jnp.arange(groups)).any(1)
        by = jnp.where(keep[..., None], parts, -jnp.inf).reshape(by.shape)
    ids = lax.top_k(by, k)[1].astype(jnp.int32)
    weights = jnp.take_along_axis(value, ids, 1)
    if renormalise:
        weights = weights / (weights.sum(-1, keepdims=True) + (1e-20 if scores == "sigmoid" else 0.0))
    return ids, weights * scale


def _refuse_logits(spec: Mapping[str, Any]) -> str | None:
    return f"reads logits in float32, not {spec['logits']}" if "logits" in spec else None


ROUTE = Kernel("route", "top-k", in_jax(_route), _refuse_logits)
"""The body sorts all experts. XLA has an operation for the best few, with the lower id of equals, as in the op. A kernel in
Pallas would not pay: a decode step's scores are a few registers."""
