"""The quantised matmul: what dequantising and multiplying gives, interpreted; and lowered for TPUs nobody has here."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax import export
from jax.sharding import AbstractDevice, AbstractMesh

from thalweg.backends.tpu.arrays import to_host
from thalweg.backends.tpu.matmul import _linear, _pack, _supports
from thalweg.hal.ops.quantise import dequantise, quantise
from thalweg.hal.weights import DENSE, QTensor, WeightFormat

FORMATS = [
    WeightFormat("int", 8),
    WeightFormat("int", 4, 128),
    WeightFormat("int", 4, 32, symmetric=False),
    WeightFormat("float", 8, 128),
    WeightFormat("float", 8, -1),
    WeightFormat("float", 4, 32),
]


def _packed(format: WeightFormat, out: int, fan_in: int) -> tuple[dict[str, jax.Array], np.ndarray]:
    """What the kernel takes, and the weight it means."""
    made = quantise(torch.randn(out, fan_in, generator=torch.Generator().manual_seed(1)), format)
    placed = QTensor(format, made.shape, {k: jnp.asarray(to_host(v)) for k, v in made.data.items()})
    return _pack(placed), dequantise(made.data, format.group, torch.float32).numpy()


@pytest.mark.parametrize(
    ("rows", "out", "fan_in", "format"),
    [
        pytest.param(*sizes, f, id=f"{sizes[0]}-{f}", marks=pytest.mark.slow if sizes[0] == 130 and f.symmetric else ())
        for sizes in ((3, 40, 160), (130, 300, 520)) for f in FORMATS
    ],
)  # fmt: skip
def test_the_product_is_that_of_the_dequantised_weight(format: WeightFormat, rows: int, out: int, fan_in: int) -> None:
    weight, means = _packed(format, out, fan_in)
    x, bias = (np.random.default_rng(2).normal(size=s).astype(np.float32) for s in ((rows, fan_in), (out,)))
    got = np.asarray(jax.jit(partial(_linear, group=format.group, interpret=True))(x, weight, bias))
    want = x.astype(np.float64) @ means.astype(np.float64).T + bias
    np.testing.assert_allclose(got, want, atol=1e-5 * np.abs(want).max())


def test_integers_of_4_bits_take_half_a_byte() -> None:
    weight, _ = _packed(FORMATS[1], 256, 1024)
    assert weight["codes"].nbytes == 256 * 1024 // 2


@pytest.mark.parametrize("kind", ["TPU v5 lite", "TPU v6 lite", "TPU7x"])
@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_it_lowers_for_hardware(format: WeightFormat, kind: str) -> None:
    weight = jax.eval_shape(lambda: _packed(format, 768, 512)[0])
    mesh = AbstractMesh((1,), ("x",), abstract_device=AbstractDevice(device_kind=kind, num_cores=1, platform="tpu"))
    with jax.sharding.use_abstract_mesh(mesh):
        run = export.export(jax.jit(partial(_linear, group=format.group)), platforms=["tpu"])
        for rows in (1, 300):
            assert "tpu_custom_call" in run(jax.ShapeDtypeStruct((rows, 512), "bfloat16"), weight).mlir_module()


@pytest.mark.parametrize(
    ("format", "why"),
    [
        (DENSE, "dense ones are XLA's"),
        (WeightFormat("int", 8, act="int8"), "not in int8"),
        (WeightFormat("int", 8, symmetric=False), "without zero points"),
        (WeightFormat("int", 4, 96), "groups that divide 256, not 96"),
        (WeightFormat("int", 2), "4 and 8 bits, not 2"),
    ],
    ids=str,
)
def test_what_it_does_not_run_it_says(format: WeightFormat, why: str) -> None:
    assert why in (_supports({"weight": format}) or "")
