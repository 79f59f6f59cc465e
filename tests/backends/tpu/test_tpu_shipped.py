"""The attention kernel JAX ships: what it is handed gives, by the definition JAX ships beside it, what attention is; and the
kernel lowers. It cannot be interpreted, so nothing here runs it."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from chips import CHIPS
from jax import export
from jax.experimental.pallas.ops.tpu.ragged_paged_attention.kernel import ref_ragged_paged_attention
from jax.sharding import AbstractDevice, AbstractMesh

from thalweg.backends.tpu import shipped
from thalweg.backends.tpu.attention import backends
from thalweg.hal.attention import AttnSpec, choose_attention
from thalweg.hal.step import StepShape
from thalweg.hal.testing import sequences as seq

SPECS = {
    "gqa": AttnSpec(8, 2, 128, 128**-0.5, "float32"),
    "window": AttnSpec(4, 4, 128, 0.1, "float32", "window", 20, softcap=5.0),
}
MIX = [(37, 1), (45, 20), (16, 16)]


@pytest.mark.slow
@pytest.mark.parametrize("spec", SPECS.values(), ids=list(SPECS))
def test_what_it_is_handed_means_attention(spec: AttnSpec) -> None:
    rng, size = np.random.default_rng(0), 16
    stories = [seq.story(rng, spec, length, new) for length, new in MIX]
    table, blocks = seq.tables(rng, stories, size)
    backend = shipped.ShippedAttention(interpret=False)
    kv = jnp.full((blocks, *backend.layout(spec, size).shape), jnp.nan, spec.dtype)
    got = None

    def unread(q: jax.Array, *more: jax.Array, **options: float | None) -> jax.Array:
        """Stands in for the first step, which only fills the cache: JAX compiles every line of its definition anew for each
        length, for seconds."""
        return q

    first = ([0] * len(MIX), [n - q or 1 for n, q in MIX], unread)
    for start, query, kernel in (first, ([n - q for n, q in MIX], [q for _, q in MIX], ref_ragged_paged_attention)):
        batch = seq.batch_of(table, start, query)
        tokens = batch.tokens.size
        shape = StepShape(tokens + 9, len(MIX) + 2, table.shape[1] + 1)
        batch = batch.pad(shape)
        q, k, v = (
            np.pad(a, ((0, shape.tokens - tokens), (0, 0), (0, 0)), constant_values=np.nan)
            for a in seq.rows(stories, start, query)
        )
        plan = backend.metadata(batch, 0, spec, shape)
        told = (batch.block_tables[0], batch.token_seq, batch.positions, batch.slots, plan)
        got, kv = shipped.attend(q, k, v, kv, *told, spec=spec, kernel=kernel)
        assert (np.asarray(got[tokens:]) == 0).all()
        got = got[:tokens]
    want = np.concatenate([seq.dense(s, spec, torch.float32) for s in stories])
    np.testing.assert_allclose(got, want, atol=2e-5 * np.abs(want).max())


@pytest.mark.parametrize("kind", CHIPS)
@pytest.mark.slow
def test_the_kernel_lowers_for_hardware(kind: str) -> None:
    spec, i32 = AttnSpec(32, 8, 128, 0.1, "bfloat16"), "int32"
    shape = partial(jax.ShapeDtypeStruct)
    kv = shape((64, *shipped.ShippedAttention(interpret=False).layout(spec, 32).shape), spec.dtype)
    plan = {"starts": shape((9,), i32), "lengths": shape((8,), i32), "count": shape((1,), i32)}
    q, k = shape((48, 32, 128), spec.dtype), shape((48, 8, 128), spec.dtype)
    rows = shape((8, 20), i32), shape((48,), i32), shape((48,), i32), shape((8,), i32)
    mesh = AbstractMesh((1,), ("x",), abstract_device=AbstractDevice(device_kind=kind, num_cores=1, platform="tpu"))
    with jax.sharding.use_abstract_mesh(mesh):
        run = export.export(jax.jit(partial(shipped.attend, spec=spec, kernel=shipped._kernel)), platforms=["tpu"])
        assert run(q, k, k, kv, *rows, plan).mlir_module().count("tpu_custom_call") == 1


def test_it_comes_after_ours_and_says_what_it_refuses() -> None:
    spec = AttnSpec(32, 8, 128, 0.1, "bfloat16")
    assert [b.name for b in backends("auto", interpret=False)] == ["pallas-ragged", "jax-ragged", "xla"]
    assert choose_attention(backends("jax", interpret=False), spec)[0].name == "jax-ragged"
    for change, why in (
        ({"sinks": True}, "has no sinks"), ({"kv_dtype": "int8"}, "not int8"), ({"head_dim": 64}, "64 is not a multiple"),
        ({"kv_heads": 16, "heads": 48, "dtype": "float16"}, "not float16"), ({"kv_heads": 3, "heads": 3}, "do not fill tiles"),
    ):  # fmt: skip
        fields = {"heads": 32, "kv_heads": 8, "head_dim": 128, "scale": 0.1, "dtype": "bfloat16"} | change
        assert why in (shipped.ShippedAttention(interpret=False).supports(AttnSpec(**fields)) or "")
    with pytest.raises(ValueError, match="runs on hardware alone: it cannot be interpreted"):
        choose_attention(backends("jax", interpret=True), spec)
