"""The Pallas kernels: interpreted they compute what the formula says, and they lower for TPUs nobody has here."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from chips import CHIPS
from jax import export
from jax.sharding import AbstractDevice, AbstractMesh

from thalweg.backends.tpu.pallas import ragged_attention
from thalweg.hal.ops.quantise import encode_kv

SIZE, DIM, HEADS, PER = 8, 16, 2, 4
RNG = np.random.default_rng


def _dense(q: np.ndarray, kv: np.ndarray, position: int, window: int, softcap: float) -> np.ndarray:
    """One query vector over a sequence's keys and values [length, 2 D], in float64."""
    low = max(0, position - window + 1) if window else 0
    pairs = kv[low : position + 1].astype(np.float64)
    scores = pairs[:, :DIM] @ q.astype(np.float64) * 0.3
    scores = softcap * np.tanh(scores / softcap) if softcap else scores
    weights = np.exp(scores - scores.max())
    return weights / weights.sum() @ pairs[:, DIM:]


@pytest.mark.parametrize(
    ("window", "softcap"),
    [(11, 2.0), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((0, 0.0), (11, 0.0), (0, 2.0)))],
)
@pytest.mark.slow
def test_attention_is_the_formula_and_reads_nothing_of_others(window: int, softcap: float) -> None:
    rng = RNG(window)
    lengths, tiles = [41, 3, 20], [(0, 39, 2), (1, 2, 1), (2, 0, 4), (2, 16, 4), (0, 0, 0)]
    cache = np.full((16, HEADS, SIZE, 2 * DIM), np.nan, np.float32)
    table, told, free = np.zeros((3, 6), np.int32), [], iter(rng.permutation(np.arange(1, 16)))
    for s, n in enumerate(lengths):
        told.append(rng.normal(size=(HEADS, n, 2 * DIM)).astype(np.float32))
        for b in range(-(-n // SIZE)):
            table[s, b] = next(free)
            part = told[s][:, b * SIZE : (b + 1) * SIZE]
            cache[table[s, b], :, : part.shape[1]] = part
    q = rng.normal(size=(len(tiles), HEADS, 4 * PER, DIM)).astype(np.float32)
    columns = [jnp.asarray(c, jnp.int32) for c in zip(*tiles, strict=True)]
    run = partial(ragged_attention.attend, per=PER, scale=0.3, window=window, softcap=softcap, span=16, interpret=True)
    got = np.asarray(jax.jit(run)(q, cache, table, *columns))
    for n, (seq, first, count) in enumerate(tiles):
        for token in range(count):
            for h in range(HEADS):
                for row in range(token * PER, (token + 1) * PER):
                    want = _dense(q[n, h, row], told[seq][h], first + token, window, softcap)
                    np.testing.assert_allclose(got[n, h, row], want, atol=2e-5)


def test_a_write_changes_the_rows_it_names_and_no_others() -> None:
    rng = RNG(1)
    cache, new = (rng.normal(size=(n, HEADS, SIZE, 2 * DIM)).astype(np.float32) for n in (6, 4))
    block, low, high = np.array([[4, 2, 0, 0], [0, 3, 0, 0], [8, 5, 0, 0]], np.int32)
    got = np.asarray(jax.jit(partial(ragged_attention.write, interpret=True))(cache, new, block, low, high))
    want = cache.copy()
    want[4], want[2][:, 3:5] = new[0], new[1][:, 3:5]
    np.testing.assert_array_equal(got, want)


def test_a_cache_of_bytes_holds_what_the_definition_keeps() -> None:
    """Codes are those of the definition; scales, which a device divides its own way, nearly."""
    torch.manual_seed(0)
    heads, dim = 6, 16  # scales of 6 heads fill one head and half of another
    k, v = torch.randn(2, 5, heads, dim)
    for kind in ("float8_e4m3fn", "float8_e5m2", "int8"):
        got = np.asarray(jax.jit(partial(ragged_attention.encode, kind=kind))(k.numpy(), v.numpy()))
        want = torch.cat([encode_kv(a, kind)[..., :dim] for a in (k, v)], -1)
        assert got.shape == (5, heads + (ragged_attention.scale_heads(heads, dim) if kind == "int8" else 0), 2 * dim)
        np.testing.assert_array_equal(got[:, :heads].astype(np.float32), want.to(torch.float32).numpy())
    scales = got[:, heads:].reshape(5, -1)[:, : 8 * heads].copy().view(np.float32).reshape(5, heads, 2)
    for n, a in enumerate((k, v)):
        np.testing.assert_allclose(
            scales[..., n], encode_kv(a, "int8")[..., dim:].contiguous().view(torch.float32)[..., 0], rtol=2e-7
        )


@pytest.mark.slow
@pytest.mark.parametrize("kind", CHIPS)
@pytest.mark.parametrize(
    ("heads", "rows", "dim", "dtype", "kv_dtype"),
    [
        (8, 64, 128, "bfloat16", "bfloat16"), (2, 16, 64, "bfloat16", "int8"), (8, 64, 128, "bfloat16", "float8_e4m3fn"),
        *(pytest.param(*case, marks=pytest.mark.slow)
          for case in ((2, 16, 64, "float32", "float32"), (8, 16, 128, "float32", "int8"))),
    ],
)  # fmt: skip
def test_kernels_lower_for_hardware(kind: str, heads: int, rows: int, dim: int, dtype: str, kv_dtype: str) -> None:
    more = ragged_attention.scale_heads(heads, dim) if kv_dtype == "int8" else 0
    cache, tile = jax.ShapeDtypeStruct((64, heads + more, 32, 2 * dim), kv_dtype), jax.ShapeDtypeStruct((12,), jnp.int32)
    q, table = jax.ShapeDtypeStruct((12, heads, rows, dim), dtype), jax.ShapeDtypeStruct((4, 20), jnp.int32)
    sinks = jax.ShapeDtypeStruct((heads, rows), jnp.float32)
    device = AbstractDevice(device_kind=kind, num_cores=1, platform="tpu")
    attend = partial(ragged_attention.attend, per=4, scale=0.1, window=100, softcap=3.0)
    with jax.sharding.use_abstract_mesh(AbstractMesh((1,), ("x",), abstract_device=device)):
        lowered = [
            export.export(jax.jit(attend), platforms=["tpu"])(q, cache, table, tile, tile, tile, sinks),
            export.export(jax.jit(ragged_attention.write), platforms=["tpu"])(
                cache, jax.ShapeDtypeStruct((12, *cache.shape[1:]), kv_dtype), tile, tile, tile
            ),
        ]
    assert all("tpu_custom_call" in e.mlir_module() for e in lowered)
