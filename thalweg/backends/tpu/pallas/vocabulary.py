"""From a row of logits to one token, whatever the size of the vocabulary. Truncation and the best few tokens keep a
row in fast memory from the first look to the last. The draw needs one pass. Nothing is sorted. Truncation needs only
thresholds, found bit by bit, each bit by a sum over the row. The best few are found in sequence.

ROWS rows at a time (or as many as there are), CHUNK tokens at a time, sums kept per lane until a pass ends.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

ROWS, CHUNK, LANES = 8, 2048, 128
BLOCK = 8 * CHUNK
"""Tokens of a step of the draw."""
LARGEST = 360_000
"""Largest vocabulary with rows that fit, eight at a time, in the memory a kernel has without asking for more."""
LOWEST = -(1 << 31)
"""Below every key."""


def truncate(logits: jax.Array, top_k: jax.Array, top_p: jax.Array, min_p: jax.Array, *, interpret: Any = False) -> jax.Array:
    """-inf where a token is cut, logits where not: logits f32[S, V], V up to LARGEST, the rest [S] -> f32[S, V].

    min_p cuts tokens less likely than min_p times the argmax. top_k (0: off) then cuts logits below the k-th largest, and its
    equals stay. top_p (1: off) then cuts a token if the more likely ones hold top_p of the remaining probability, equals in
    order of their ids."""
    rows, vocab = logits.shape
    logits, high = _in_rows(logits)
    words = [a[:, None] for a in (jnp.where(top_k > 0, jnp.minimum(top_k, vocab), vocab), top_p, min_p)]
    word = pl.BlockSpec((high, 1), lambda i: (i, 0))
    call = pl.pallas_call(
        partial(_truncate, vocab=vocab),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=0,
            grid=(logits.shape[0] // high,),
            in_specs=[word, word, word, pl.BlockSpec(memory_space=pl.ANY)],
            out_specs=pl.BlockSpec(memory_space=pl.ANY),
            scratch_shapes=_room(logits, high),
        ),
        out_shape=jax.ShapeDtypeStruct(logits.shape, jnp.float32),
        interpret=interpret,
    )
    return call(*words, logits)[:rows, :vocab]


def _in_rows(logits: jax.Array) -> tuple[jax.Array, int]:
    """The logits with whole lanes and a whole number of groups of rows, and how many rows a group has."""
    rows, vocab = logits.shape
    high = min(ROWS, rows)
    return jnp.pad(logits, ((0, -rows % high), (0, -vocab % LANES)), constant_values=-jnp.inf), high


def _room(logits: jax.Array, high: int) -> list[Any]:
    """Fast memory for a group of rows in whole chunks, and signals of their arrival."""
    return [pltpu.VMEM((high, -(-logits.shape[1] // CHUNK) * CHUNK), jnp.float32), pltpu.SemaphoreType.DMA(())]


def _fetch(logits: Any, held: Any, arrived: Any) -> Any:
    """This step's rows into held, -inf beyond their ends. Gives which rows they are."""
    width, rows = logits.shape[1], held.shape[0]
    mine = pl.ds(pl.multiple_of(pl.program_id(0) * rows, rows), rows)
    _copy(logits.at[mine], held.at[:, :width], arrived)
    if width < held.shape[1]:
        held[:, width:] = jnp.full((rows, held.shape[1] - width), -jnp.inf, jnp.float32)
    return mine


def _truncate(top_k: Any, top_p: Any, min_p: Any, logits: Any, out: Any, held: Any, arrived: Any, *, vocab: int) -> None:
    """A few rows. held: their logits, -inf where they are cut so far."""
    mine = _fetch(logits, held, arrived)
    top = _total(held, jnp.maximum, -jnp.inf, lambda x, _: x).max(1, keepdims=True)
    _keep(held, lambda x, _: jnp.exp(x - top) >= min_p[...])

    k, p = top_k[...], top_p[...]
    least = _largest(lambda key: _count(held, lambda x, _: _keys(x) >= key) >= k, 32, LOWEST, k < vocab)
    _keep(held, lambda x, _: _keys(x) >= least)

    def mass(which: Callable[[jax.Array], jax.Array]) -> jax.Array:
        """f32[rows, 1]: the sum of the likelihoods of `which` tokens, where the argmax counts 1."""
        return _total(held, jnp.add, 0.0, lambda x, _: jnp.where(which(x), jnp.exp(x - top), 0.0)).sum(1, keepdims=True)

    share = jnp.maximum(p, 1e-30) * mass(lambda x: x > -jnp.inf)
    cut = _largest(lambda key: mass(lambda x: _keys(x) > key) >= share, 32, LOWEST, p < 1)
    border = cut + 1
    above = mass(lambda x: _keys(x) > border)
    each = jnp.exp(_value(border) - top)
    equals = _count(held, lambda x, _: _keys(x) == border)

    def room(key: jax.Array) -> jax.Array:
        """Whether a token of this id at the border stays: those at the border before it do not fill the share."""
        before = _count(held, lambda x, ids: (_keys(x) == border) & (ids < key))
        return above + before.astype(jnp.float32) * each < share

    bits = held.shape[1].bit_length()
    crowded = (p < 1) & (above + (equals - 1).astype(jnp.float32) * each >= share)
    last = jnp.where(crowded, _largest(room, bits, 0, crowded), jnp.int32(1 << bits))
    _keep(held, lambda x, ids: (p >= 1) | (_keys(x) > border) | ((_keys(x) == border) & (ids <= last)))
    _copy(held.at[:, : out.shape[1]], out.at[mine], arrived)


def _copy(source: Any, target: Any, arrived: Any) -> None:
    copy = pltpu.make_async_copy(source, target, arrived)
    copy.start()
    copy.wait()


def _keys(x: jax.Array) -> jax.Array:
    """float32 -> int32 in the same order. Both zeros are one value."""
    bits = lax.bitcast_convert_type(jnp.where(x == 0, 0.0, x), jnp.int32)
    return jnp.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


def _value(key: jax.Array) -> jax.Array:
    """The inverse of `_keys`."""
    return lax.bitcast_convert_type(jnp.where(key < 0, key ^ 0x7FFFFFFF, key), jnp.float32)


def _chunks(held: Any) -> int:
    return int(held.shape[1]) // CHUNK


def _at(c: Any) -> Any:
    return pl.ds(pl.multiple_of(c * CHUNK, CHUNK), CHUNK)


def _ids(c: Any, rows: int) -> jax.Array:
    return c * CHUNK + lax.broadcasted_iota(jnp.int32, (rows, CHUNK), 1)


def _total(held: Any, add: Any, nothing: Any, of: Callable[[jax.Array, jax.Array], jax.Array]) -> jax.Array:
    """[rows, CHUNK]: of(logits, ids) of all chunks together, per lane."""
    rows = held.shape[0]
    start = jnp.full((rows, CHUNK), nothing, jnp.float32)
    return lax.fori_loop(0, _chunks(held), lambda c, all: add(all, of(held[:, _at(c)], _ids(c, rows))), start)


def _count(held: Any, which: Callable[[jax.Array, jax.Array], jax.Array]) -> jax.Array:
    """i32[rows, 1]. Lanes count in float32, which is exact up to 2^24, as rows are summed only in float32."""
    lanes = _total(held, jnp.add, 0.0, lambda x, ids: jnp.where(which(x, ids), 1.0, 0.0))
    return lanes.sum(1, keepdims=True).astype(jnp.int32)


def _keep(held: Any, which: Callable[[jax.Array, jax.Array], jax.Array]) -> None:
    def one(c: Any, carry: None) -> None:
        x = held[:, _at(c)]
        held[:, _at(c)] = jnp.where(which(x, _ids(c, held.shape[0])), x, -jnp.inf)

    lax.fori_loop(0, _chunks(held), one, None)


def _largest(holds: Callable[[jax.Array], jax.Array], bits: int, least: int, wanted: jax.Array) -> jax.Array:
    """i32[rows, 1]: the largest of the 2^bits values from `least` on that `holds`, which is monotone: true up to some
    value. `least` counts as true. If no row is `wanted`, nothing is looked at, and the answer is `least`."""

    def one(i: Any, found: jax.Array) -> jax.Array:
        more = found + lax.shift_left(jnp.int32(1), jnp.int32(bits - 1) - i)
        return jnp.where(holds(more), more, found)

    some = jnp.max(jnp.where(wanted, 1.0, 0.0)) > 0
    return lax.fori_loop(0, jnp.where(some, bits, 0), one, jnp.full(wanted.shape, least, jnp.int32))


def best(logits: jax.Array, k: int, *, interpret: Any = False) -> jax.Array:
    """The ids of the k largest logits of each row, largest first, equals in order of their ids: f32[S, V], V up to
    LARGEST and no less than k, k up to LANES -> i32[S, k]. Both zeros are one value."""
    rows = logits.shape[0]
    logits, high = _in_rows(logits)
    call = pl.pallas_call(
        partial(_best, k=k),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=0,
            grid=(logits.shape[0] // high,),
            in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
            out_specs=pl.BlockSpec((high, LANES), lambda i: (i, 0)),
            scratch_shapes=_room(logits, high),
        ),
        out_shape=jax.ShapeDtypeStruct((logits.shape[0], LANES), jnp.int32),
        interpret=interpret,
    )
    return call(logits)[:rows, :k]


def _best(logits: Any, out: Any, held: Any, arrived: Any, *, k: int) -> None:
    """A few rows. Each look finds the largest value after the last one found."""
    _fetch(logits, held, arrived)
    rows = held.shape[0]
    column = lax.broadcasted_iota(jnp.int32, (rows, LANES), 1)

    def one(j: Any, last: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        key, token, found = last

        def look(c: Any, lanes: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            most, who = lanes
            mine, ids = _keys(held[:, _at(c)]), _ids(c, rows)
            after = (mine < key) | ((mine == key) & (ids > token))
            more = after & (mine > most)
            return jnp.where(more, mine, most), jnp.where(more, ids, who)

        empty = jnp.full((rows, CHUNK), LOWEST, jnp.int32)
        most, who = lax.fori_loop(0, _chunks(held), look, (empty, jnp.zeros((rows, CHUNK), jnp.int32)))
        key = _largest_of(most)
        token = -_largest_of(jnp.where(most == key, -who, LOWEST))
        return key, token, jnp.where(column == j, token, found)

    above = jnp.full((rows, 1), -LOWEST - 1, jnp.int32)
    first = above, jnp.full((rows, 1), -LOWEST - 1, jnp.int32), jnp.zeros((rows, LANES), jnp.int32)
    out[...] = lax.fori_loop(0, k, one, first)[2]


def _largest_of(a: jax.Array) -> jax.Array:
    """i32[rows, CHUNK] -> i32[rows, 1]. Halved lane by lane first: rows of integers are not reduced at once."""
    while a.shape[1] > LANES:
        low, high = jnp.split(a, 2, 1)
        a = jnp.maximum(low, high)
    return a.max(1, keepdims=True)


def draw(
    logits: jax.Array, noisy: jax.Array, k0: jax.Array, k1: jax.Array, *, multiply: tuple[int, int], random: bool,
    interpret: Any = False,
) -> jax.Array:  # fmt: skip
    """The argmax of logit + noise of each row, of equals the lowest id: logits f32[S, V], noisy bool[S] (False: no
    noise), k0 and k1 i32[S] -> i32[S]. Noise of token t is -log(-log1p(-v)), v = (mix(mix(t + k0) ^ k1) +
    1/2) / 2^32. mix is lowbias32 with these two multipliers. random=False: no row is noisy."""
    rows, vocab = logits.shape
    high = min(ROWS, rows)
    words = [a.astype(jnp.int32)[:, None] for a in (noisy, k0, k1)]
    word = pl.BlockSpec((high, 1), lambda i, c: (i, 0))
    call = pl.pallas_call(
        partial(_draw, vocab=vocab, multiply=multiply, random=random),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=0,
            grid=(-(-rows // high), -(-vocab // BLOCK)),
            in_specs=[word, word, word, pl.BlockSpec((high, BLOCK), lambda i, c: (i, c))],
            out_specs=word,
            scratch_shapes=[pltpu.VMEM((high, CHUNK), jnp.float32), pltpu.VMEM((high, CHUNK), jnp.int32)],
        ),
        out_shape=jax.ShapeDtypeStruct((rows, 1), jnp.int32),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        interpret=interpret,
    )
    return call(*words, logits)[:, 0]


def _draw(
    noisy: Any, k0: Any, k1: Any, logits: Any, out: Any, best: Any, token: Any, *, vocab: int, multiply: tuple[int, int],
    random: bool,
) -> None:  # fmt: skip
    """One block of a few rows. best, token: the largest so far in each lane, and its token."""
    start = pl.program_id(1) * BLOCK

    @pl.when(start == 0)
    def clear() -> None:
        best[...] = jnp.full(best.shape, -jnp.inf, jnp.float32)
        token[...] = lax.broadcasted_iota(jnp.int32, token.shape, 1)

    def one(c: Any, carry: None) -> None:
        ids = start + _ids(c, best.shape[0])
        x = logits[:, _at(c)]
        if random:
            x = jnp.where(noisy[...] > 0, x + _gumbel(_mix(_mix(ids + k0[...], multiply) ^ k1[...], multiply)), x)
        more = (x > best[...]) & (ids < vocab)
        best[...] = jnp.where(more, x, best[...])
        token[...] = jnp.where(more, ids, token[...])

    lax.fori_loop(0, BLOCK // CHUNK, one, None)

    @pl.when(pl.program_id(1) == pl.num_programs(1) - 1)
    def choose() -> None:
        most = best[...].max(1, keepdims=True)
        out[...] = jnp.where(best[...] == most, token[...], jnp.int32(vocab - 1)).min(1, keepdims=True)


def _mix(x: jax.Array, multiply: tuple[int, int]) -> jax.Array:
    """lowbias32 on int32, with products that wrap around."""
    for shift, by in ((16, multiply[0]), (15, multiply[1])):
        x = (x ^ lax.shift_right_logical(x, jnp.full_like(x, shift))) * jnp.int32(by - (1 << 32) if by >> 31 else by)
    return x ^ lax.shift_right_logical(x, jnp.full_like(x, 16))


def _gumbel(h: jax.Array) -> jax.Array:
    """The noise of a hash, int32 -> float32."""
    high = lax.shift_right_logical(h, jnp.full_like(h, 8)).astype(jnp.float32)
    v = jnp.minimum((high * 256.0 + (h & 255).astype(jnp.float32) + 0.5) * 2.0**-32, 1 - 2.0**-24)
    return -jnp.log(-jnp.log1p(-v))
