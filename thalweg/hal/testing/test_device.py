"""Promises of a platform and its device other than arithmetic."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from thalweg.errors import DeviceError
from thalweg.hal.device import Device
from thalweg.hal.kv import KVLayout
from thalweg.hal.platform import ModelInfo, Parallel, Platform
from thalweg.hal.step import StateBox, StepBatch, StepResult
from thalweg.hal.testing.cases import empty_batch, run

FACTS = ModelInfo("SomeForCausalLM", "bfloat16", 2, 64, 4, 2, 16, 1000, 512, 1 << 20)


@pytest.fixture(autouse=True)
def _needs_steps(request: pytest.FixtureRequest, platform: Platform) -> None:
    if "executes" in request.node.name and not platform.runs_models:
        pytest.skip(f"platform {platform.name} runs no models: it executes no step")


def test_probing_imports_no_framework(request: pytest.FixtureRequest) -> None:
    code = (
        "import sys; from thalweg.hal import discovery; p = discovery.load(sys.argv[1]).probe();"
        "assert p.reason and isinstance(p.score, int); print(sorted({'torch', 'jax'} & set(sys.modules)))"
    )
    name = request.config.getoption("--platform")
    done = subprocess.run([sys.executable, "-c", code, name], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_defaults_are_complete_enough_to_serve(platform: Platform, device: Device) -> None:
    d = platform.defaults(FACTS, device.info)
    for name in ("block_tokens", "max_num_seqs", "max_num_batched_tokens", "pipeline_depth"):
        value = getattr(d, name)
        assert value is None or value >= 1, name
    assert d.dtype is None or d.dtype in device.info.dtypes


def test_topology_covers_every_rank_once(platform: Platform) -> None:
    places = platform.topology(Parallel(tensor=2)).places
    assert sum(len(p.devices) for p in places) == 2


def test_options_are_a_frozen_dataclass(platform: Platform) -> None:
    if platform.options is not None:
        assert dataclasses.is_dataclass(platform.options)
        assert not isinstance(platform.options, type)
        assert platform.options.__dataclass_params__.frozen  # type: ignore[attr-defined]


def test_a_platform_without_knobs_set_is_itself_and_one_of_wrong_knobs_is_none(platform: Platform) -> None:
    assert platform.with_options(None) is platform
    with pytest.raises(DeviceError, match=r"not int"):
        platform.with_options(1)
    if platform.options is not None:
        result, given = platform.with_options(platform.options), dataclasses.replace(platform.options)
        assert result.with_options(given).options is given
        assert result.options is platform.options


def test_memory_is_within_its_total(device: Device) -> None:
    memory = device.memory()
    assert 0 < memory.free <= memory.total


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
def test_put_executes_to_the_same_values(device: Device, dtype: str) -> None:
    array = torch.arange(-12, 12).reshape(4, 6).to(getattr(torch, dtype))
    got = run(device, lambda x: x, [device.put(array)])[0]
    np.testing.assert_array_equal(got, array.to(torch.float32).numpy())


def test_a_new_cache_executes_as_zeros(device: Device) -> None:
    kv = device.alloc_kv(KVLayout((2, 4, 2, 8), "float32", "test"), 5)
    got = run(device, lambda x: x, [kv])[0]
    assert got.shape == (5, 2, 4, 2, 8)
    assert not got.any()


def test_caches_of_a_model_executes_each_for_itself(device: Device) -> None:
    """Caches of equal layouts may be interleaved."""
    alike, other = (KVLayout(shape, "float32", "test", apart=True) for shape in ((2, 4), (3,)))
    caches = device.alloc_caches([alike, alike, other], [6, 6, 5])
    data, every = np.arange(8, dtype=np.float32).tobytes(), [np.arange(n, dtype=np.int32) for n in (6, 6, 5)]
    try:
        caches[1] = device.write_blocks(caches[1], np.array([4], np.int32), data)
    except NotImplementedError as e:
        pytest.skip(str(e))
    caches[1] = device.copy_blocks(caches[1], np.array([4], np.int32), np.array([2], np.int32))
    first, second, third = (device.read_blocks(c, n) for c, n in zip(caches, every, strict=True))
    none = bytes(len(data))
    assert (first, third) == (6 * none, bytes(5 * 3 * 4))
    assert second == none + none + data + none + data + none


def test_a_row_that_is_written_executes_from_the_next_step_on(device: Device) -> None:
    """Steps in flight read the row as it was at their launch."""
    box = StateBox({"rows": device.alloc((3, 2, 4), "bfloat16"), "other": device.alloc((3,), "int32")})

    def step(params: Any, state: Any, batch: StepBatch) -> tuple[Any, StepResult]:
        return state, StepResult(batch.slots[:, None], batch.query, extras={"rows": state["rows"].to(torch.float32) + 0})

    run = device.compile(step, None, box, None, None)
    values = torch.arange(16, dtype=torch.bfloat16).reshape(2, 2, 4)
    launched = [run(empty_batch())]
    for at, row in ((2, values[0]), (1, values[1]), (2, values[1])):
        try:
            box.value = {**box.value, "rows": device.write(box.value["rows"], at, row)}
        except NotImplementedError as e:
            pytest.skip(str(e))
        launched.append(run(empty_batch()))
    want, got = np.zeros((3, 2, 4), np.float32), [p.result().extras["rows"].copy() for p in launched]
    for (at, row), rows in zip(((0, torch.zeros(2, 4)), (2, values[0]), (1, values[1]), (2, values[1])), got, strict=True):
        want[at] = row.to(torch.float32).numpy()
        np.testing.assert_array_equal(rows, want)


def _count(device: Device, box: StateBox) -> Any:
    def step(params: Any, state: Any, batch: StepBatch) -> tuple[Any, StepResult]:
        return state + params, StepResult(state.reshape(1, 1), batch.query)

    return device.compile(step, device.put(torch.ones(1, dtype=torch.int32)), box, None, None)


def test_calls_executes_in_order_whichever_executable_is_called(device: Device) -> None:
    box = StateBox(device.alloc((1,), "int32"))
    one, other = _count(device, box), _count(device, box)
    launched = [exe(empty_batch()) for exe in (one, other, other, one)]
    assert [int(p.result().tokens[0, 0]) for p in launched] == [0, 1, 2, 3]


def test_a_step_that_executes_with_an_error_raises_it_and_the_next_one_runs(device: Device) -> None:
    box = StateBox(device.alloc((1,), "int32"))

    def fail(params: Any, state: Any, batch: StepBatch) -> tuple[Any, StepResult]:
        raise ArithmeticError("on purpose")

    with pytest.raises(ArithmeticError, match="on purpose"):
        device.compile(fail, None, box, None, None)(empty_batch()).result()
    assert int(_count(device, box)(empty_batch()).result().tokens[0, 0]) == 0


def test_blocks_executes_out_and_in_again(device: Device) -> None:
    kv = device.alloc_kv(KVLayout((2, 4), "float32", "test"), 6)
    data = np.arange(16, dtype=np.float32).tobytes()
    try:
        kv = device.write_blocks(kv, np.array([4, 2], np.int32), data)
    except NotImplementedError as e:
        pytest.skip(str(e))
    assert device.read_blocks(kv, np.array([4, 2], np.int32)) == data
    kv = device.copy_blocks(kv, np.array([2], np.int32), np.array([5], np.int32))
    assert device.read_blocks(kv, np.array([5], np.int32)) == data[32:]
    assert not np.frombuffer(device.read_blocks(kv, np.array([0, 1, 3], np.int32)), np.float32).any()


def test_exported_blocks_executes_on_from_there_after_import(device: Device) -> None:
    """An export has the writes of the steps before it, though a later one writes there, and steps go on from an import."""
    if not device.moves_blocks:
        pytest.skip(f"{device.info.kind} moves no blocks")
    box = StateBox(device.alloc((5, 1, 2), "int32"))
    other = device.alloc_kv(KVLayout((3,), "bfloat16", "test"), 5)

    def step(params: Any, state: Any, batch: StepBatch) -> tuple[Any, StepResult]:
        # As caches are written: in place, but where a compiler makes new arrays.
        state = state.add_(params) if type(state) is torch.Tensor else state + params
        return state, StepResult(state.reshape(1, 10) + 0, batch.query)

    run = device.compile(step, device.put(torch.ones(1, dtype=torch.int32)), box, None, None)
    steps = [run(empty_batch()) for _ in range(2)]
    left = device.export([box.value, other], np.array([2, 4, 1], np.int32))
    steps.append(run(empty_batch()))
    rows = left.result()
    assert rows.shape == (3, 2 * 4 + 3 * 2)
    assert rows[:, :8].copy().view(np.int32).tolist() == [[2, 2]] * 3
    rows = rows.copy()
    rows[1, :8].view(np.int32)[:] = (70, 80)
    rows[:, 8:] = np.arange(18, dtype=np.uint8).reshape(3, 6)
    box.value, other = device.import_([box.value, other], np.array([3, 1, 2], np.int32), rows)
    steps.append(run(empty_batch()))
    results = [int(v) for p in steps[:3] for v in p.result().tokens[0, :1]]
    assert results == [1, 2, 3]
    assert steps[3].result().tokens[0, 2:].tolist() == [71, 81, 3, 3, 3, 3, 4, 4]  # block 0 is scratch
    back = device.export([other], np.array([1, 3], np.int32)).result()
    assert back.tolist() == [rows[1, 8:].tolist(), rows[0, 8:].tolist()]
