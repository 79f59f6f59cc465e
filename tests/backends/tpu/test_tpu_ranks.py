"""A model divided among devices that one process drives: the tokens of the whole, and nobody sees a rank."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import zoo

from thalweg import LLM, SamplingParams
from thalweg.backends.tpu import TpuOptions, TpuPlatform
from thalweg.backends.tpu.mesh import Ranks
from thalweg.errors import ConfigError, DeviceError
from thalweg.hal.kv import KVLayout
from thalweg.hal.platform import Parallel, Place
from thalweg.hal.step import StateBox, StepResult
from thalweg.hal.testing.cases import empty_batch

HOST = {"jax_platform": "cpu", "compilation_cache": ""}
SIZES = {"dtype": "float32", "max_model_len": 48, "max_num_seqs": 3, "max_num_batched_tokens": 16, "block_size": 8}
PROMPTS = ["hello", "the quick brown fox jumps", "a"]
PARAMS = [
    SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=2),
    SamplingParams(temperature=0.9, seed=3, max_tokens=8, ignore_eos=True, logprobs=2),
    SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=2),
]


def _answers(path: Path, device: str, ranks: int, additional: dict[str, Any] | None) -> list[tuple[list[int], list[float]]]:
    llm = LLM(
        str(path), device=device, additional_config=additional, tensor_parallel_size=ranks, use_tqdm_on_load=False, **SIZES
    )
    outs = [o.outputs[0] for o in llm.generate(PROMPTS, PARAMS, use_tqdm=False)]
    return [(list(o.token_ids), [p[t].logprob for t, p in zip(o.token_ids, o.logprobs, strict=True)]) for o in outs]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "ranks"),
    [
        *(pytest.param(*case, marks=pytest.mark.nightly) for case in (("qwen3-windowed", 2), ("llama", 2))),
        ("llama", 4),
        ("deepseek-v3", 2),
    ],
)
def test_tokens_are_those_of_one_device(model: str, ranks: int, tmp_path: Path) -> None:
    path = zoo.make_checkpoint(model, tmp_path)
    for got, want in zip(_answers(path, "tpu", ranks, HOST), _answers(path, "reference", 1, None), strict=True):
        assert got[0] == want[0]
        np.testing.assert_allclose(got[1], want[1], atol=1e-4)


def _device(n: int) -> Any:
    return TpuPlatform().with_options(TpuOptions(**HOST)).open(Place(world=n, devices=tuple(range(n))))


def test_collectives_are_what_they_say_and_ranks_see_their_own_parts() -> None:
    device = _device(4)
    mine = np.arange(4 * 8, dtype=np.float32).reshape(4, 2, 4)
    divided = device.join([device.put_on(mine[r], r) for r in range(4)])

    def step(params: Any, state: Any, batch: Any) -> tuple[Any, StepResult]:
        x, comm = params, device.comm
        extras = {
            "sum": comm.all_reduce(x), "rows": comm.all_gather(x, 0), "columns": comm.all_gather(x),
            "scattered": comm.all_gather(comm.reduce_scatter(x), -1), "swapped": comm.all_gather(comm.all_to_all(x, 1), 0),
        }  # fmt: skip
        return state, StepResult(batch.slots[:, None], batch.query, extras=extras)

    exe = device.compile(step, divided, StateBox(device.alloc((2,), "int32")), None, None)
    got = exe(empty_batch()).result().extras
    total = mine.sum(0)
    np.testing.assert_array_equal(got["sum"], total)
    np.testing.assert_array_equal(got["rows"], mine.reshape(8, 4))
    np.testing.assert_array_equal(got["columns"], np.concatenate(list(mine), 1))
    np.testing.assert_array_equal(got["scattered"], total)
    np.testing.assert_array_equal(got["swapped"].reshape(4, 2, 4), np.moveaxis(mine, 0, 2).reshape(2, 4, 4).swapaxes(0, 1))


@pytest.mark.slow
def test_a_cache_is_divided_and_its_blocks_move_whole() -> None:
    device, layout = _device(2), KVLayout((3, 4, 2), "float32", "test")
    kv = device.alloc_kv(layout, 5)
    assert {s.data.shape for s in kv.addressable_shards} == {(5, 3, 4, 2)}
    data = np.random.default_rng(0).normal(size=(2, 6, 4, 2)).astype(np.float32)
    kv = device.copy_blocks(device.write_blocks(kv, np.array([4, 1]), data.tobytes()), np.array([4]), np.array([2]))
    assert device.read_blocks(kv, np.array([2, 1])) == data.tobytes()
    assert len(kv.sharding.device_set) == 2


@pytest.mark.slow
def test_one_process_drives_all_devices_and_others_refuse_in_words() -> None:
    (place,) = TpuPlatform().topology(Parallel(tensor=4)).places
    assert place.devices == (0, 1, 2, 3)
    with pytest.raises(ConfigError, match=r"tensor_parallel_size: platform 'reference' divides no model among 2 processes"):
        LLM(device="reference", tensor_parallel_size=2, **SIZES)
    with pytest.raises(ConfigError, match=r"tensor_parallel_size: 3 does not divide the model's"):
        LLM(device="tpu", additional_config=HOST, tensor_parallel_size=3, **SIZES)
    with pytest.raises(DeviceError, match=r"64 devices are asked for, and JAX sees 4"):
        _device(64)


@pytest.mark.slow
def test_a_fresh_process_gets_as_many_host_devices_as_are_asked_for() -> None:
    code = (
        "from thalweg.backends.tpu import *;"
        "p = TpuPlatform().with_options(TpuOptions(jax_platform='cpu', compilation_cache=''));"
        "d = p.open(Place(world=3, devices=(0, 1, 2)));"
        "print(d.comm.size, len(d._ranks.devices))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split() == ["3", "3"]


def test_one_device_needs_no_mesh() -> None:
    one = Ranks(jax.devices("cpu")[:1])
    assert (one.comm.size, one.mesh) == (1, None)
    assert one.over(len, None, jnp.zeros(1)) is len
