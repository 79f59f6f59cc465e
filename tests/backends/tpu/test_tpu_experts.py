"""Mixtures of experts in Pallas: every token through its own experts whatever the routing, and what serves which weights."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torchax
from chips import CHIPS
from jax import export
from jax.sharding import AbstractDevice, AbstractMesh
from torchax.interop import jax_view, torch_view

from thalweg.backends.tpu import TpuOptions, moe
from thalweg.backends.tpu.arrays import to_host
from thalweg.backends.tpu.library import kernels
from thalweg.backends.tpu.pallas import grouped_matmul
from thalweg.hal import ops
from thalweg.hal.op import Binder
from thalweg.hal.ops.quantise import dequantise, quantise
from thalweg.hal.weights import DENSE, QTensor, WeightFormat

EXPERTS, HIDDEN, FFN, K = 5, 320, 160, 2
FORMATS = [
    DENSE, WeightFormat("int", 8), WeightFormat("int", 4, 64), WeightFormat("int", 4, 32, symmetric=False),
    WeightFormat("float", 8, -1), WeightFormat("float", 4, 32),
]  # fmt: skip


def _weight(rng: np.random.Generator, format: WeightFormat, out: int, fan_in: int) -> tuple[QTensor, np.ndarray]:
    """A weight of EXPERTS matrices, and what it means, float64 [EXPERTS, out, in]."""
    made = torch.from_numpy(rng.normal(size=(EXPERTS * out, fan_in)).astype(np.float32) / fan_in**0.5)
    if format == DENSE:
        placed = QTensor(DENSE, tuple(made.shape), {"weight": jnp.asarray(made.numpy())}, EXPERTS)
        return placed, made.double().numpy().reshape(-1, out, fan_in)
    q = quantise(made, format)
    placed = QTensor(format, q.shape, {n: jnp.asarray(to_host(a)) for n, a in q.data.items()}, EXPERTS)
    return placed, dequantise(q.data, format.group, torch.float32).double().numpy().reshape(-1, out, fan_in)


def _dense(x: np.ndarray, ids: np.ndarray, weights: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The definition in numpy, token by token, in float64."""
    out = np.zeros(x.shape)
    for t, token in enumerate(x.astype(np.float64)):
        for e, w in zip(ids[t], weights[t], strict=True):
            gate, up = np.split(first[e] @ token, 2)
            out[t] += w * (second[e] @ (gate / (1 + np.exp(-gate)) * up))
    return out


def _routed(rng: np.random.Generator, tokens: int, how: str) -> np.ndarray:
    """all to the same experts, or to random ones of which the last has no token."""
    if how == "crowded":
        return np.tile(np.array([3, 1], np.int32), (tokens, 1))
    return np.stack([rng.permutation(EXPERTS - 1)[:K] for _ in range(tokens)]).astype(np.int32)


@pytest.mark.slow
@pytest.mark.sampled(2, 6)
@pytest.mark.parametrize(
    ("format", "down", "tokens", "how"),
    [
        (DENSE, DENSE, 1, "random"), (DENSE, DENSE, 40, "crowded"), *((f, f, 70, "random") for f in FORMATS),
        (WeightFormat("int", 4, 64), WeightFormat("int", 8), 9, "random"), (WeightFormat("int", 8), DENSE, 9, "random"),
        (DENSE, WeightFormat("int", 4, 32, symmetric=False), 9, "random"),
    ],
    ids=str,
)  # fmt: skip
def test_every_token_goes_through_its_own_experts(format: WeightFormat, down: WeightFormat, tokens: int, how: str) -> None:
    rng = np.random.default_rng(tokens)
    (first, means1), (second, means2) = _weight(rng, format, 2 * FFN, HIDDEN), _weight(rng, down, HIDDEN, FFN)
    x, ids = rng.normal(size=(tokens, HIDDEN)).astype(np.float32), _routed(rng, tokens, how)
    weights = rng.uniform(0.1, 1, ids.shape).astype(np.float32)
    want = _dense(x, ids, weights, means1, means2)
    runs = {"pallas-grouped": (moe._experts, moe._pack)}
    if format == down == DENSE:
        runs["jax-megablox"] = moe._megablox, lambda w: w.data["weight"]
    for name, (body, pack) in runs.items():
        run = jax.jit(partial(body, experts=EXPERTS, group=format.group, down_group=down.group, interpret=True))
        got = run(x, ids, weights, pack(first), pack(second))
        np.testing.assert_allclose(got, want, atol=1e-5 * np.abs(want).max(), err_msg=name)


@pytest.mark.slow
def test_places_are_whole_tiles_of_one_matrix_each_and_no_row_is_lost() -> None:
    run = jax.jit(grouped_matmul.place, static_argnums=(1, 2))
    for seed in range(30):
        rng = np.random.default_rng(seed)
        rows, count, tile = ((1, 4, 16), (45, 8, 4), (45, 3, 1), (60, 7, 16), (16, 1, 16))[seed % 5]
        groups = rng.choice(rng.integers(0, count, rng.integers(1, 9)), rows).astype(np.int32)
        there, owner, used = (np.asarray(a) for a in run(groups, count, tile))
        assert len(set(there)) == groups.size
        np.testing.assert_array_equal(owner[there // tile], groups)
        assert used[0] == sum(-(-n // tile) for n in np.bincount(groups)) <= owner.size
        assert (there < used[0] * tile).all()
        assert (owner[used[0] :] == owner[used[0] - 1]).all()  # so that steps without a tile read nothing new


@pytest.mark.slow
def test_tiles_without_rows_cost_no_product() -> None:
    """What they would read is poisoned: the one matrix that no row has."""
    rng = np.random.default_rng(0)
    first, _ = _weight(rng, DENSE, 2 * FFN, HIDDEN)
    data = np.array(first.data["weight"])
    data[-2 * FFN :] = np.nan
    poisoned = moe._pack(QTensor(DENSE, first.shape, {"weight": jnp.asarray(data)}, EXPERTS))
    groups = np.array([0, 2, 2], np.int32)
    there, owner, used = grouped_matmul.place(groups, EXPERTS, 16)
    x = np.ones((owner.size * 16, HIDDEN), np.float32)
    act = grouped_matmul.activation("silu")
    got = np.asarray(grouped_matmul.gate_up_matmul(x, poisoned, owner, used, act=act, group=0, interpret=True))
    assert np.isfinite(got[there]).all()


@pytest.mark.slow
@pytest.mark.parametrize("kind", CHIPS)
@pytest.mark.parametrize(
    "format",
    [pytest.param(f, marks=() if f == DENSE or (f.bits == 4 and not f.symmetric) else pytest.mark.slow) for f in FORMATS],
    ids=str,
)
def test_it_lowers_for_hardware(format: WeightFormat, kind: str) -> None:
    def packed(out: int, fan_in: int) -> dict[str, jax.Array]:
        placed = _weight(np.random.default_rng(0), format, out, fan_in)[0]
        if format == DENSE:
            placed = QTensor(DENSE, placed.shape, {"weight": placed.data["weight"].astype(jnp.bfloat16)}, EXPERTS)
        return moe._pack(placed)

    first, second = jax.eval_shape(lambda: (packed(2 * FFN, HIDDEN), packed(HIDDEN, FFN)))
    mesh = AbstractMesh((1,), ("x",), abstract_device=AbstractDevice(device_kind=kind, num_cores=1, platform="tpu"))
    with jax.sharding.use_abstract_mesh(mesh):
        said = {"experts": EXPERTS, "group": format.group, "down_group": format.group}
        run = export.export(jax.jit(partial(moe._experts, **said)), platforms=["tpu"])
        for tokens in (1, 200):
            x, ids = jax.ShapeDtypeStruct((tokens, HIDDEN), "bfloat16"), jax.ShapeDtypeStruct((tokens, K), "int32")
            text = run(x, ids, jax.ShapeDtypeStruct(ids.shape, "float32"), first, second).mlir_module()
            assert text.count("tpu_custom_call") == 2


@pytest.mark.parametrize(
    ("options", "on_host", "serving"),
    [
        ({}, False, "pallas-grouped"), ({}, True, "reference"), ({"attention": "pallas"}, True, "pallas-grouped"),
        ({"experts": "jax"}, False, "jax-megablox"), ({"experts": "jax"}, True, "jax-megablox"),
        ({"experts": "xla"}, False, "reference"),
    ],
)  # fmt: skip
def test_which_kernel_serves_is_a_choice(options: dict[str, str], on_host: bool, serving: str) -> None:
    binder = Binder(kernels(TpuOptions(**options), on_host))
    facts = {"experts": EXPERTS, "dtype": "bfloat16", "act": "silu", "weight": DENSE, "down_weight": DENSE}
    assert binder.bind(ops.experts, **facts).choice.kernel == serving
    assert binder.bind(ops.route, k=2, scores="softmax", renormalise=True).choice.kernel == "top-k"


def test_what_is_refused_is_said() -> None:
    facts = {"experts": EXPERTS, "dtype": "bfloat16", "act": "silu", "down_weight": DENSE}
    binder = Binder(moe.kernels(interpret=True))
    quantised = binder.bind(ops.experts, **facts, weight=WeightFormat("int", 2)).choice
    assert quantised.kernel == "reference"
    assert dict(quantised.refused) == {
        "pallas-grouped": "runs 4 and 8 bits, not 2", "jax-megablox": "runs dense weights, not int2-row",
    }  # fmt: skip
    rounded = binder.bind(ops.experts, **facts, weight=WeightFormat("int", 8, act="int8")).choice
    assert "not in int8" in dict(rounded.refused)["pallas-grouped"]
    down = binder.bind(ops.experts, **(facts | {"down_weight": WeightFormat("int", 2)}), weight=DENSE).choice
    assert dict(down.refused) == dict(quantised.refused)
    binder = Binder(moe.kernels(interpret=True))
    assert (
        "not relu" in dict(binder.bind(ops.experts, **(facts | {"act": "relu"}), weight=DENSE).choice.refused)["jax-megablox"]
    )


@pytest.mark.parametrize(
    "name", [pytest.param("pallas-grouped", marks=pytest.mark.nightly), pytest.param("jax-megablox", marks=pytest.mark.slow)]
)
def test_adapters_of_experts_are_those_of_the_body_and_rows_without_one_keep_their_bits(name: str) -> None:
    """More pairs than gather their matrices at once."""
    rng, rank, slots, tokens = np.random.default_rng(1), 3, 4, 34
    plain, adapted = (k.run for k in moe.kernels(interpret=True) if k.name == name)
    pack = next(k.pack for k in moe.kernels(interpret=True) if k.name == name)
    held = [_weight(rng, DENSE, out, fan_in)[0] for out, fan_in in ((2 * FFN, HIDDEN), (HIDDEN, FFN))]
    x, ids = rng.normal(size=(tokens, HIDDEN)).astype(np.float32), _routed(rng, tokens, "random")
    weights, slot = rng.uniform(0.1, 1, ids.shape).astype(np.float32), (np.arange(tokens) % slots).astype(np.int32)
    shapes = ((2 * rank, HIDDEN), (rank, 2 * FFN), (rank, FFN), (rank, HIDDEN))
    arrays = [rng.normal(size=(slots, EXPERTS, *s)).astype(np.float32) / s[1] ** 0.5 for s in shapes]
    ranks = rng.integers(0, rank + 1, (slots, EXPERTS, 3)).astype(np.int32)
    ranks[3] = 0
    view = torch_view
    with torchax.default_env():
        batch = [view(jnp.asarray(a)) for a in (x, ids, weights)]
        packed = [view(pack(w)) for w in held]
        more = [view(jnp.asarray(a)) for a in (slot, *arrays, ranks)]
        base = np.asarray(jax_view(plain(*batch, *packed, experts=EXPERTS)))
        got = np.asarray(jax_view(adapted(*batch, *packed, *more, experts=EXPERTS)))
    tensors = [torch.from_numpy(np.array(w.data["weight"])) for w in held]
    want = ops.lora_experts.reference(
        *map(torch.from_numpy, (x, ids, weights)), *tensors, *map(torch.from_numpy, (slot, *arrays, ranks)), experts=EXPERTS
    )
    np.testing.assert_allclose(got, want, atol=2e-5 * float(want.abs().max()))
    same = slot % 3 == 0
    np.testing.assert_array_equal(got[same], base[same])
    assert np.abs(got - base)[~same].max() > 0.1
