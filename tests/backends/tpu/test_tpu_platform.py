"""The TPU platform on JAX's host platform: the same step as everywhere, the same tokens, its memory reused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
import torch
import zoo
from jax import export
from jax.sharding import AbstractDevice, AbstractMesh
from tpu_steps import LLAMA_1B, step_of

from thalweg import LLM, AsyncLLM, EngineArgs, SamplingParams
from thalweg.backends.tpu import TpuOptions, TpuPlatform
from thalweg.backends.tpu.arrays import pack, to_host
from thalweg.backends.tpu.mesh import Ranks
from thalweg.errors import ConfigError, DeviceError
from thalweg.hal.parts.bias import Bias
from thalweg.hal.parts.mask import Mask
from thalweg.hal.platform import Limits, ModelInfo, Place
from thalweg.hal.step import Features, SamplingArrays, StateBox, StepBatch, StepResult, StepShape

HOST = {"jax_platform": "cpu", "compilation_cache": ""}
"""With "precompile": "none" nothing is compiled ahead of time: a program that a test does not run would take a third of it."""
SIZES = {"dtype": "float32", "max_model_len": 48, "max_num_seqs": 3, "max_num_batched_tokens": 16, "block_size": 8}
PROMPTS = ["hello", "the quick brown fox jumps", "a"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return zoo.make_checkpoint("qwen3-windowed", tmp_path_factory.mktemp("tpu"))


def _tokens(path: Path, device: str, additional: dict | None, params: list[SamplingParams]) -> list[list[int]]:
    llm = LLM(str(path), device=device, additional_config=additional, use_tqdm_on_load=False, **SIZES)
    return [list(o.outputs[0].token_ids) for o in llm.generate(PROMPTS, params, use_tqdm=False)]


GREEDY = [SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)] * 3
DRAWN = [
    SamplingParams(temperature=0.9, seed=3, top_p=0.9, repetition_penalty=1.2, max_tokens=10, ignore_eos=True),
    SamplingParams(temperature=0, logit_bias={7: 2.0}, max_tokens=10, ignore_eos=True),
    SamplingParams(temperature=1.1, seed=8, top_k=20, presence_penalty=0.5, max_tokens=10, ignore_eos=True),
]


@pytest.mark.slow
def test_greedy_tokens_are_those_of_the_definition(checkpoint: Path) -> None:
    want = _tokens(checkpoint, "reference", None, GREEDY)
    assert _tokens(checkpoint, "tpu", {**HOST, "attention": "xla", "precompile": "none"}, GREEDY) == want


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["xla", pytest.param("pallas", marks=pytest.mark.nightly)])
def test_drawn_and_penalised_tokens_are_those_of_the_definition(checkpoint: Path, attention: str) -> None:
    want = _tokens(checkpoint, "reference", None, DRAWN)
    assert _tokens(checkpoint, "tpu", {**HOST, "attention": attention, "precompile": "none"}, DRAWN) == want


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "kernel"), [pytest.param("int8", "pallas-rounded", marks=pytest.mark.nightly), ("w4a16", "pallas-quantised")]
)
def test_the_kernels_of_the_hardware_serve_rounded_weights(method: str, kernel: str) -> None:
    """The bundled draft model through every Pallas kernel its steps have, interpreted: its plan names them, its tokens are
    the definition's."""

    def answer(device: str, more: dict) -> tuple[list[int], list[str]]:
        sizes = {**SIZES, "max_model_len": 64, "max_num_batched_tokens": 64}
        llm = LLM("thalweg-nano-draft", device=device, quantization=method, use_tqdm_on_load=False, **sizes, **more)
        asked = [{"role": "user", "content": "Sort: pear, apple, plum"}]
        out = llm.chat([asked], SamplingParams(max_tokens=2, temperature=0), use_tqdm=False)
        return list(out[0].outputs[0].token_ids), list(llm.kernel_plan)

    got, plan = answer("tpu", {"additional_config": {**HOST, "attention": "pallas", "precompile": "none"}})
    assert got == answer("reference", {})[0]
    for name in (kernel, "pallas-ragged", "pallas-draw", "pallas-bisect"):
        assert any(f"-> {name}" in line for line in plan), "\n".join(plan)


@pytest.mark.slow
async def test_an_engine_process_gives_the_same(checkpoint: Path) -> None:
    engine = await AsyncLLM.start(
        EngineArgs(model=str(checkpoint), device="tpu", additional_config=HOST, use_tqdm_on_load=False, **SIZES)
    )
    try:
        got = [out async for out in engine.generate(PROMPTS[1], GREEDY[0], "one")][-1]
    finally:
        await engine.shutdown()
    assert list(got.outputs[0].token_ids) == _tokens(checkpoint, "reference", None, GREEDY)[1]


# ------------------------------------------------------------------ programs


def _open(**options: object) -> object:
    return TpuPlatform().with_options(TpuOptions(**{**HOST, **options})).open(Place())


def _batch(n: int = 1, **fields: object) -> StepBatch:
    i32 = np.int32
    return StepBatch(
        tokens=np.arange(n, dtype=i32), token_seq=np.arange(n, dtype=i32), positions=np.zeros(n, i32),
        slots=np.arange(1, n + 1, dtype=i32), context=np.zeros(n, i32), query=np.ones(n, i32),
        last_row=np.arange(n, dtype=i32), emit=np.ones(n, bool), block_tables=(np.ones((n, 2), i32),),
        sampling=SamplingArrays.greedy(n), **fields,
    )  # fmt: skip


def _count(params: object, state: torch.Tensor, batch: StepBatch) -> tuple[object, StepResult]:
    return state + batch.tokens.sum(), StepResult(state[:1, None].to(torch.int32), batch.query)


def test_the_state_is_donated_and_its_memory_reused() -> None:
    device = _open()
    box = StateBox(device.alloc((1 << 16,), "int32"))
    before, at = box.value, box.value.unsafe_buffer_pointer()
    device.compile(_count, None, box, None, None)(_batch()).result()
    assert before.is_deleted()
    assert box.value.unsafe_buffer_pointer() == at


def test_steps_are_launched_before_earlier_ones_are_read() -> None:
    device = _open()
    exe = device.compile(_count, None, StateBox(device.alloc((4,), "int32")), None, None)
    launched = [exe(_batch(3)) for _ in range(4)]
    assert [int(p.result().tokens[0, 0]) for p in launched] == [0, 3, 6, 9]
    with pytest.raises(RuntimeError, match="twice"):
        launched[0].result()


def test_batches_of_one_bucket_share_a_program_whatever_their_lists_hold() -> None:
    device, shape = _open(), StepShape(8, 8, 4)
    exe = device.compile(_count, None, StateBox(device.alloc((4,), "int32")), shape, None)
    for n in range(1, 8):
        bias = {"parts": (Bias(np.zeros(n, np.int32), np.zeros(n, np.int32), np.ones(n, np.float32)),)}
        exe(_batch(n, **bias).pad(shape)).result()
    assert len(exe._programs) == 1


@pytest.mark.slow
def test_a_batch_travels_as_one_buffer_and_arrives_as_it_was() -> None:
    two = np.arange(2, dtype=np.int32)
    parts = (
        Mask(np.array([[1 << 31], [7], [0]], np.uint32), np.empty((0, 1), np.uint32)),
        Bias(two, two, np.array([-np.inf, 0.5], np.float32)),
    )
    batch = _batch(3, parts=parts)
    buffer, cut_up, _ = pack(batch)
    got = cut_up.map(lambda cut: np.asarray(cut.out_of(jax.numpy.asarray(buffer))))
    for (name, a), (_, b) in zip(batch.arrays(), got.arrays(), strict=True):
        np.testing.assert_array_equal(a.view(np.int32) if a.dtype == np.uint32 else a, b, err_msg=name)
    with pytest.raises(TypeError, match="float64"):
        pack(_batch(1, parts=(Bias(two, two, np.zeros(2)),)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.int64])
def test_tensors_numpy_has_no_name_for_arrive(dtype: torch.dtype) -> None:
    tensor = torch.arange(6).reshape(2, 3).to(dtype)
    np.testing.assert_array_equal(to_host(tensor).astype(np.float32), tensor.to(torch.float32).numpy())


# ------------------------------------------------------------------ what it says


def test_without_hardware_it_refuses_and_names_the_way_to_try_it(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r"no Google TPU found .*jax_platform"):
        TpuPlatform(tmp_path).with_options(TpuOptions()).open(Place())
    with pytest.raises(DeviceError, match="jax_platform"):
        LLM(device="tpu", **SIZES)


def test_wrong_knobs_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"jax_platfrom.*it has: attention"):
        LLM(device="tpu", additional_config={"jax_platfrom": "cpu"}, **SIZES)
    with pytest.raises(DeviceError, match="auto, pallas, jax, xla"):
        _open(attention="flash")
    with pytest.raises(DeviceError, match="precompile must be one of auto, all, first, none"):
        _open(precompile="some")


@pytest.mark.slow
def test_it_does_not_promise_what_a_compiler_decides(checkpoint: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ConfigError, match=r"batch_invariant: on tpu a compiler orders sums.*leave the flag out"):
        LLM(str(checkpoint), device="tpu", additional_config=HOST, batch_invariant=True, **SIZES)
    with caplog.at_level("INFO"):
        llm = LLM(str(checkpoint), device="tpu", additional_config={**HOST, "precompile": "none"}, **SIZES)
    assert "batch invariance: no: on tpu" in caplog.text
    assert not any("[batch-invariant]" in line for line in llm.kernel_plan)


def test_programs_are_few_and_prepared_ones_hold_the_smallest_steps() -> None:
    buckets = TpuPlatform().buckets(TpuPlatform().defaults(None, _open().info), Limits(256, 16, 512, 32))
    first = [s for s in buckets if s.tokens == 1 or (s.tokens == 16 and not s.uniform)]
    assert set(_open().warmup_buckets(buckets)) == set(first)
    assert len(first) == 2
    assert tuple(_open(precompile="all").warmup_buckets(buckets)) == buckets
    assert tuple(_open(precompile="none").warmup_buckets(buckets)) == ()
    wide = _open().widen(Features(logprobs=3))
    assert wide.covers(Features(random=True, logprobs=20))
    assert not wide.truncate
    assert _open().widen(Features()).logprobs == -1


def test_some_bucket_holds_every_step_within_the_limits_and_they_are_few() -> None:
    platform, facts = TpuPlatform(), ModelInfo("x", "bfloat16", 2, 64, 4, 2, 16, 1000, 4096, 1 << 20)
    for tokens, seqs in ((2048, 128), (16, 1), (8, 8), (300, 7)):
        shapes = platform.buckets(platform.defaults(facts, _open().info), Limits(tokens, seqs, 4096, 32))
        assert len(shapes) <= 12
        assert len(set(shapes)) == len(shapes)
        for n in range(1, seqs + 1):
            assert any(s.tokens >= n and s.uniform for s in shapes)
            decode = _batch(n)
            decode.uniform = 1
            assert any(s.fits(decode) for s in shapes)
        most = StepShape(tokens, seqs + 1, 128)
        assert any(s.tokens >= most.tokens and s.seqs >= most.seqs and s.blocks >= most.blocks for s in shapes)


def test_probing_and_importing_load_no_framework() -> None:
    code = (
        "import sys; from thalweg.backends.tpu import TpuPlatform; TpuPlatform().probe();"
        "print({'jax', 'torch', 'torchax'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "set()"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "ranks"),
    [
        (StepShape(4, 4, 128, uniform=True), 1),
        (StepShape(4, 4, 128, uniform=True), 2),
        pytest.param(StepShape(64, 5, 128), 1, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_whole_step_lowers_for_hardware(shape: StepShape, ranks: int) -> None:
    """Of a 1B model's shapes, two layers: a cache write and an attention per layer and one draw, every cache donated, and where
    the model is divided a sum after attention and one after the MLP."""
    device = AbstractDevice(device_kind="TPU v6 lite", num_cores=1, platform="tpu")
    mesh = AbstractMesh((ranks,), ("rank",), abstract_device=device)
    among = Ranks(jax.devices("cpu")[:ranks])
    among.mesh = mesh if ranks > 1 else None
    step, shapes = step_of(LLAMA_1B | {"num_hidden_layers": 2}, shape, ranks=among)
    with jax.sharding.use_abstract_mesh(mesh):
        text = export.export(step, platforms=["tpu"])(*shapes).mlir_module()
    assert text.count("tpu_custom_call") == 5
    assert text.count("stablehlo.all_reduce") == (4 if ranks > 1 else 0)
    assert text.count("tf.aliasing_output") + text.count("jax.buffer_donor") == 3  # two caches, the history
