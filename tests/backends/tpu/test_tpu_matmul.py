"""The quantised matmul: what dequantising and multiplying gives, interpreted; and lowered for TPUs nobody has here."""

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

from thalweg.backends.tpu.arrays import to_host
from thalweg.backends.tpu.matmul import _linear, kernels, pack, round_rows
from thalweg.hal.op import Binder
from thalweg.hal.ops.matmul import linear
from thalweg.hal.ops.quantise import dequantise, quantise, quantise_rows
from thalweg.hal.weights import DENSE, QTensor, WeightFormat

FORMATS = [
    WeightFormat("int", 8),
    WeightFormat("int", 4, 128),
    WeightFormat("int", 4, 32, symmetric=False),
    WeightFormat("float", 8, 128),
    WeightFormat("float", 8, -1),
    WeightFormat("float", 4, 32),
]
ROUNDED = [
    WeightFormat("int", 8, act="int8"),
    WeightFormat("float", 8, act="float8_e4m3fn"),
    WeightFormat("int", 4, 128, act="float8_e4m3fn"),
]


def _packed(format: WeightFormat, out: int, fan_in: int) -> tuple[dict[str, jax.Array], np.ndarray]:
    """What the kernel takes, and the weight it means."""
    made = quantise(torch.randn(out, fan_in, generator=torch.Generator().manual_seed(1)), format)
    placed = QTensor(format, made.shape, {k: jnp.asarray(to_host(v)) for k, v in made.data.items()})
    return pack(placed), dequantise(made.data, format.group, torch.float32).numpy()


@pytest.mark.parametrize(
    ("rows", "out", "fan_in", "format"),
    [
        pytest.param(*sizes, f, id=f"{sizes[0]}-{f}", marks=pytest.mark.slow if sizes[0] == 130 and f.symmetric else ())
        for sizes in ((3, 40, 160), (130, 300, 520)) for f in FORMATS
    ],
)  # fmt: skip
@pytest.mark.slow
def test_the_product_is_that_of_the_dequantised_weight(format: WeightFormat, rows: int, out: int, fan_in: int) -> None:
    weight, means = _packed(format, out, fan_in)
    x, bias = (np.random.default_rng(2).normal(size=s).astype(np.float32) for s in ((rows, fan_in), (out,)))
    got = np.asarray(jax.jit(partial(_linear, group=format.group, interpret=True))(x, weight, bias))
    want = x.astype(np.float64) @ means.astype(np.float64).T + bias
    np.testing.assert_allclose(got, want, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize("format", [ROUNDED[0], pytest.param(ROUNDED[1], marks=pytest.mark.slow), ROUNDED[2]], ids=str)
@pytest.mark.parametrize(("rows", "out", "fan_in"), [(3, 40, 160), pytest.param(300, 600, 2304, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_rounded_inputs_are_multiplied_as_codes(format: WeightFormat, rows: int, out: int, fan_in: int) -> None:
    weight, means = _packed(format, out, fan_in)
    x = np.random.default_rng(3).normal(size=(rows, fan_in)).astype(np.float32) * np.logspace(-3, 3, rows)[:, None]
    x = x.astype(np.float32)
    codes, scale = (np.asarray(a).astype(np.float64) for a in jax.jit(partial(round_rows, act=format.act))(x))
    got = np.asarray(jax.jit(partial(_linear, group=format.group, act=format.act, interpret=True))(x, weight))
    want = codes @ means.astype(np.float64).T * scale
    assert (np.abs(got - want).max(1) <= 1e-5 * np.abs(want).max(1)).all()


def test_rows_are_rounded_as_the_definition_rounds_them() -> None:
    """But for a division that XLA may make a multiplication: a value in the middle of two codes may go the other way."""
    x = torch.randn(90, 700, generator=torch.Generator().manual_seed(0)) * 10
    x[2] = 0
    for act in ("int8", "float8_e4m3fn"):
        codes, scale = jax.jit(partial(round_rows, act=act))(x.numpy())
        want, by = quantise_rows(x, act)
        np.testing.assert_allclose(scale, by.numpy(), rtol=2e-7)
        assert (np.asarray(codes).astype(np.float32) != want.to(torch.float32).numpy()).mean() < 1e-4


def test_integers_are_multiplied_as_integers() -> None:
    """Half the bytes and twice the rate are why anyone rounds: the product that is traced is one of 8-bit integers."""
    weight, _ = _packed(ROUNDED[0], 256, 512)
    traced = str(jax.make_jaxpr(partial(_linear, act="int8", interpret=True))(jnp.ones((4, 512), "bfloat16"), weight))
    assert "preferred_element_type=int32" in traced
    assert "i8[32,512]" in traced


@pytest.mark.slow
def test_integers_of_4_bits_take_half_a_byte() -> None:
    weight, _ = _packed(FORMATS[1], 256, 1024)
    assert weight["codes"].nbytes == 256 * 1024 // 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", CHIPS)
@pytest.mark.parametrize("format", FORMATS + ROUNDED, ids=str)
def test_it_lowers_for_hardware(format: WeightFormat, kind: str) -> None:
    weight = jax.eval_shape(lambda: _packed(format, 768, 512)[0])
    mesh = AbstractMesh((1,), ("x",), abstract_device=AbstractDevice(device_kind=kind, num_cores=1, platform="tpu"))
    with jax.sharding.use_abstract_mesh(mesh):
        run = export.export(jax.jit(partial(_linear, group=format.group, act=format.act)), platforms=["tpu"])
        for rows in (1, 300):
            assert "tpu_custom_call" in run(jax.ShapeDtypeStruct((rows, 512), "bfloat16"), weight).mlir_module()


@pytest.mark.parametrize(
    ("format", "why"),
    [
        (DENSE, "dense ones are XLA's"),
        (WeightFormat("int", 8, symmetric=False), "without zero points"),
        (WeightFormat("int", 4, 96), "groups that divide 256, not 96"),
        (WeightFormat("int", 2), "4 and 8 bits, not 2"),
        (WeightFormat("int", 8, 128, act="int8"), "one scale per output, not by int8-g128-int8"),
        (WeightFormat("int", 8, act="float8_e5m2"), "rounds its inputs to int8 or float8_e4m3fn, not to float8_e5m2"),
    ],
    ids=str,
)
def test_what_none_of_them_runs_each_says(format: WeightFormat, why: str) -> None:
    binder = Binder(kernels(interpret=True))
    choice = binder.bind(linear, in_features=512, out_features=64, dtype="float32", weight=format).choice
    assert choice.kernel == "reference"
    assert why in dict(choice.refused)["pallas-rounded" if format.act else "pallas-quantised"]


@pytest.mark.parametrize("format", FORMATS + ROUNDED, ids=str)
def test_the_rest_is_bound(format: WeightFormat) -> None:
    bound = Binder(kernels(interpret=True)).bind(linear, in_features=512, out_features=64, dtype="float32", weight=format)
    assert bound.choice.kernel == ("pallas-rounded" if format.act else "pallas-quantised")
