"""FlashAttention-4 from kernels compiled ahead: on objects that compute what they were asked, with the signatures of the real
ones; and the real ones as far as a processor reaches. No GPU has run them."""

from __future__ import annotations

import importlib.util
import itertools
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import standins
import torch
from torch import Tensor

from thalweg.backends.cuda import CudaPlatform, flash4
from thalweg.backends.rocm import RocmPlatform
from thalweg.backends.torch_gpu import library
from thalweg.backends.torch_gpu.attention import GatherAttention
from thalweg.backends.torch_gpu.device import GpuDevice
from thalweg.backends.torch_gpu.host import HostRuntime
from thalweg.backends.torch_gpu.platform import GpuOptions
from thalweg.errors import DeviceError
from thalweg.hal.attention import AttnSpec
from thalweg.hal.device import DeviceInfo
from thalweg.hal.platform import CompiledKernel
from thalweg.hal.step import StepShape
from thalweg.hal.testing import sequences as seq
from thalweg.hal.testing import test_attention as kit

SM_90 = (
    "mQ: Tensor([n0, n1, n2], {dtype}), mK: Tensor([n3, n4, n5, n6], {dtype}), mV: Tensor([n7, n8, n9, n10], {dtype}), "
    "mO: Tensor([n11, n12, n13], {dtype}), mLSE: None, softmax_scale: float32, mCuSeqlensQ: Tensor([n14], int32), "
    "mCuSeqlensK: None, mSeqUsedQ: None, mSeqUsedK: Tensor([n15], int32), mPageTable: Tensor([n16, n17], int32), "
    "window_size_left: {window}, window_size_right: {window}, learnable_sink: None, blocksparse_tensors: None, "
    "aux_data: Tuple[None, None], mCuTotalMBlocks: None, mCuTotalSplitsMBlocks: None"
)
SM_100 = SM_90.replace("blocksparse", "descale_tensors: None, blocksparse").replace(
    "mCuTotalMBlocks: None, mCuTotalSplitsMBlocks: None",
    "num_splits_dynamic_ptr: None, tile_count_semaphore: None, virtual_batch_idx_ptr: None, num_nheads_in_l2_ptr: None, "
    "mCuTotalMBlocks: None, mCuTotalSplitsMBlocks: None, mBlocksToBatchIdx: None, max_seqlen_q: int32",
)
"""As objects of flash-attn-4 4.0.0b36 state them."""
SIGNATURES = {"sm_90": SM_90, "sm_100": SM_100}
SPECS = {
    "mha": AttnSpec(2, 2, 128, 128**-0.5, "bfloat16"), "gqa": AttnSpec(6, 2, 64, 0.05, "float16"),
    "window": AttnSpec(4, 1, 128, 128**-0.5, "bfloat16", "window", 20),
    "softcap": AttnSpec(4, 2, 128, 128**-0.5, "bfloat16", softcap=5.0),
}  # fmt: skip
GQA = SPECS["gqa"]


def _describe_signature(arch: str, spec: AttnSpec) -> str:
    window = "int32" if spec.kind == "window" else "None"
    return SIGNATURES[arch].format(dtype=spec.dtype, window=window)


def _object(signature: str, softcap: float, calls: list[tuple[Any, ...]]) -> Callable[..., None]:
    """A function that accepts what an object accepts, in its order."""
    order = re.findall(r"(\w+): [NTfi]", signature)

    def run(*given: Any) -> None:
        if len(given) != len(order):
            raise TypeError(f"Expects {len(order)} parameters when calling: `__call__({signature})`")
        calls.append(given)
        a = dict(zip(order, given, strict=True))
        windowed = "window_size_left: int32" in signature
        assert [n for n in order if a[n] is None or a[n] == (None, None)] == [
            n for n in order if f"{n}: None" in signature or f"{n}: Tuple" in signature
        ]
        _attend(a, (a["window_size_left"], a["window_size_right"]) if windowed else (-1, -1), softcap)

    return run


def _attend(a: dict[str, Any], window: tuple[int, int], softcap: float) -> None:
    held, out, table = a["mSeqUsedK"], a["mO"], a["mPageTable"].long()
    assert len(a["mCuSeqlensQ"]) == len(held) + 1 == len(table) + 1
    if len(held) == len(out):  # decodes, perhaps captured: no value may be read
        k, v = (a[n][table].flatten(1, 2) for n in ("mK", "mV"))
        out.copy_(standins.formula(a["mQ"][:, None], k, v, held, a["softmax_scale"], True, window, softcap)[:, 0])
        return
    starts = a["mCuSeqlensQ"].tolist()
    for s, (first, end) in enumerate(itertools.pairwise(starts)):
        if end > first:
            k, v = (a[n][table[s]].flatten(0, 1)[None] for n in ("mK", "mV"))
            out[first:end] = standins.formula(
                a["mQ"][None, first:end], k, v, held[s : s + 1], a["softmax_scale"], True, window, softcap
            )[0]


@pytest.fixture
def device() -> GpuDevice:
    return GpuDevice(DeviceInfo("test", "test", 1 << 30, 1, ("bfloat16",)), HostRuntime(), library.KernelSet())


def _attention(
    arch: str, spec: AttnSpec, folder: Path, stated: str | None = None, **more: Any
) -> tuple[flash4.FlashAttention4, list[tuple[Any, ...]]]:
    calls: list[tuple[Any, ...]] = []
    (folder / f"{flash4.name_object(arch, spec)}.so").touch()
    function = _object(stated or _describe_signature(arch, spec), spec.softcap, calls)
    kernels = flash4.ObjectFolder(arch, folder, lambda path: function)
    return flash4.FlashAttention4(arch, kernels, GatherAttention(), more.get("invariant", False)), calls


@pytest.mark.parametrize("arch", SIGNATURES)
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@pytest.mark.sampled(3)
def test_one_object_runs_prompts_decodes_and_captured_steps(
    device: GpuDevice, arch: str, spec: AttnSpec, tmp_path: Path
) -> None:
    attention, calls = _attention(arch, spec, tmp_path)
    assert attention.supports(spec) is None
    decodes = [(length, 1) for length in (1, 37, 16, 32)]
    for mix, shape in (
        ([*decodes, (45, 20), (64, 64), (56, 30), (3, 2)], None), (decodes, None),
        (decodes, StepShape(8, 8, 4, uniform=True)), (decodes, StepShape(40, 6, 4)),
    ):  # fmt: skip
        stories, cache, table, start = standins.fill_cache(device, attention, spec, mix, 16)
        query = [s.query for s in stories]
        batch = replace(seq.batch_of(table, start, query), uniform=1 if mix == decodes else 0)
        got = cache.attend(batch, *seq.rows(stories, start, query), shape=shape)
        want = np.concatenate([seq.dense(s, spec, getattr(torch, spec.dtype)) for s in stories])
        assert np.abs(got - want).max() <= kit.TOLERANCE[spec.dtype] * np.abs(want).max()
    assert {len(c) for c in calls} == {18 if arch == "sm_90" else 25}


def test_a_replayed_step_follows_the_new_lengths(device: GpuDevice, tmp_path: Path) -> None:
    attention, _ = _attention("sm_90", GQA, tmp_path)
    shape = StepShape(4, 4, 3, uniform=True)
    stories, cache, table, start = standins.fill_cache(device, attention, GQA, [(34, 3), (20, 3), (4, 3)], 16)
    for step in range(3):
        at = [n + step for n in start]
        got = cache.attend(replace(seq.batch_of(table, at, [1] * 3), uniform=1), *seq.rows(stories, at, [1] * 3), shape=shape)
        want = np.stack([seq.dense(s, GQA, torch.float16)[step] for s in stories])
        assert np.abs(got - want).max() <= kit.TOLERANCE["float16"] * np.abs(want).max()
    runtime: Any = device._runtime
    assert (runtime.captures, runtime.replays) == (1, 2)


@pytest.mark.parametrize(
    ("spec", "arch", "said"),
    [
        (replace(GQA, sinks=True), "sm_90", "has no sinks"),
        (replace(GQA, dtype="float32"), "sm_90", "runs bfloat16 and float16, not float32"),
        (replace(GQA, kind="chunked", window=8), "sm_90", "runs kinds full and window, not chunked"),
        (replace(GQA, kv_dtype="int8"), "sm_90", "the cache holds float16, not int8"),
        (replace(GQA, heads=5), "sm_90", "5 heads do not share 2 KV heads evenly"),
        (replace(GQA, head_dim=192), "sm_100", "runs head sizes up to 128, and 256, on sm_100, not 192"),
        (replace(GQA, head_dim=72), "sm_90", "runs head sizes that 16 divides, not 72"),
        (replace(GQA, head_dim=264), "sm_90", "runs head sizes up to 256 that 8 divides, not 264"),
        (replace(GQA, heads=2), "sm_90", "no compiled kernel sm_90-float16-d64-g1.so in "),
        (replace(GQA, softcap=30.0), "sm_90", "no compiled kernel sm_90-float16-d64-g3-softcap30.so in "),
        (replace(GQA, kind="window", window=8), "sm_90", "no compiled kernel sm_90-float16-d64-g3-window.so in "),
    ],
)
def test_layers_without_an_object_are_refused_in_words(spec: AttnSpec, arch: str, said: str, tmp_path: Path) -> None:
    attention, _ = _attention("sm_90", GQA, tmp_path)
    attention._arch = arch
    why = attention.supports(spec) or ""
    assert why.startswith(said)
    if said.startswith("no compiled"):
        command = """thalweg compile --arch sm_90 --no-batch-invariant --additional-config '{"flash_attn_4": true}'"""
        assert why.endswith(f"({command})")


@pytest.mark.parametrize(
    ("stated", "said"),
    [
        (SM_90.format(dtype="bfloat16", window="None"), "is for Tensor([n0, n1, n2], bfloat16), not float16"),
        (SM_90.format(dtype="float16", window="int32"), "is for window attention"),
        (
            SM_90.format(dtype="float16", window="None").replace("sink: None", "sink: Tensor([n18], float32)"),
            "has an argument learnable_sink: Tensor([n18], float32), which this version does not support",
        ),
        (
            SM_90.format(dtype="float16", window="None").replace("mPageTable: Tensor([n16, n17], int32)", "mPageTable: None"),
            "has no argument mPageTable",
        ),
        ("mQ", "has no argument mQ, mK, mV, mO, mCuSeqlensQ, mSeqUsedK, mPageTable"),
    ],
)  # fmt: skip
def test_an_object_of_another_interface_is_refused_in_words(stated: str, said: str, tmp_path: Path) -> None:
    (tmp_path / f"{flash4.name_object('sm_90', GQA)}.so").touch()

    def run() -> None:
        raise TypeError(f"Expects {stated.count(': ')} parameters when calling: `__call__({stated})`")

    why = flash4.ObjectFolder("sm_90", tmp_path, lambda path: run).find(GQA)
    assert isinstance(why, str)
    assert why.startswith(f"sm_90-float16-d64-g3.so does not load: {said}")


def test_it_counts_as_batch_invariant_only_where_shown_or_where_the_test_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flash4, "_cache", lambda: tmp_path)
    monkeypatch.setattr(flash4, "_loader", lambda: lambda path: None)
    found = [flash4.load("sm_90", unshown=u).attention[0].batch_invariant for u in (False, True)]
    assert found == ["sm_90" in flash4.SHOWN, True]


def test_the_option_without_its_packages_or_on_another_device_is_refused_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on = GpuOptions(flash_attn_4=True)
    with pytest.raises(DeviceError, match="flash_attn_4 is for NVIDIA GPUs, not gfx942"):
        library.triton_with(on, "gfx942")
    with pytest.raises(DeviceError, match="flash_attn_4 is for sm_90, sm_100, sm_103, not sm_80"):
        flash4.load("sm_80")
    monkeypatch.setattr(flash4, "_cache", lambda: tmp_path)
    monkeypatch.setitem(sys.modules, "tvm_ffi", None)
    with pytest.raises(DeviceError, match=r"tvm_ffi is not installed; pip install apache-tvm-ffi"):
        library.assemble("sm_90", CudaPlatform().with_options(on).vendors(), lambda arch: library.KernelSet())
    monkeypatch.setitem(sys.modules, "tvm_ffi", ModuleType("tvm_ffi"))
    monkeypatch.setattr(flash4, "runtime_library", lambda cuda: None)
    with pytest.raises(DeviceError, match=r"libcute_dsl_runtime.so is missing; pip install --no-deps nvidia-cutlass-dsl-libs"):
        flash4.load("sm_90")
    assert flash4.NAME not in [v.name for v in (*CudaPlatform().vendors(), *RocmPlatform().vendors())]


def test_the_run_time_library_of_the_same_cuda_is_preferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert flash4.runtime_library("12") is None or importlib.util.find_spec("nvidia_cutlass_dsl")
    package = tmp_path / "nvidia_cutlass_dsl"
    for cuda in ("cu12", "cu13"):
        (package / cuda / "lib").mkdir(parents=True)
        (package / cuda / "lib" / flash4.RUNTIME).touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    found = [flash4.runtime_library(c) for c in ("13", "12", "")]
    assert [p.parts[-3] for p in found if p] == ["cu13", "cu12", "cu12"]


def test_an_absent_device_collects_objects_once_and_says_when_no_layer_wants_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from thalweg.backends.cuda import flash4_compile

    made: list[tuple[str, AttnSpec, Path]] = []

    def compile_object(*given: Any) -> CompiledKernel:
        made.append(given)
        return CompiledKernel(0.0, False)

    monkeypatch.setattr(flash4_compile, "compile_object", compile_object)
    ahead = library.AheadKernels(tmp_path)
    attention: Any = flash4.load("sm_90", ahead=ahead).attention[0]
    attention._partner = GatherAttention()
    (unused,) = ahead.tasks().values()
    with pytest.raises(RuntimeError, match=r"no layer of this model is served by flash-attn-4 .* --no-batch-invariant"):
        unused()
    said = [attention.supports(s) for s in (GQA, replace(GQA, scale=1.0), replace(GQA, sinks=True))]
    assert said == [None, None, "has no sinks"]
    assert list(ahead.tasks()) == ["flash-attn-4 sm_90-float16-d64-g3"]
    for make in ahead.tasks().values():
        make()
    assert made == [("sm_90", GQA, tmp_path / "flash-attn-4" / "sm_90-float16-d64-g3.so")]


@pytest.mark.nightly
@pytest.mark.parametrize("arch", ["sm_90", "sm_100"])
def test_a_real_object_is_compiled_linked_loaded_and_called_up_to_the_driver(arch: str, tmp_path: Path) -> None:
    """Requires flash-attn-4, its compiler and tvm-ffi, and no GPU."""
    if not importlib.util.find_spec("nvidia_cutlass_dsl"):
        pytest.skip("flash-attn-4 is not installed")
    tvm_ffi = pytest.importorskip("tvm_ffi")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    path = tmp_path / f"{flash4.name_object(arch, GQA)}.so"
    code = (
        "import sys; from pathlib import Path; from thalweg.hal.attention import AttnSpec; "
        "from thalweg.backends.cuda.flash4_compile import compile_object; "
        f"print([compile_object({arch!r}, {GQA!r}, Path(sys.argv[1])).cached for _ in range(2)])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True)
    assert done.stdout == "[False, True]\n", done.stderr
    kernels = flash4.ObjectFolder(arch, tmp_path, flash4._loader())
    run = kernels.find(GQA)
    assert callable(run), run
    q, kv = torch.zeros(5, 6, 64, dtype=torch.float16), torch.zeros(9, 2, 16, 2, 64, dtype=torch.float16)
    held = torch.tensor([1, 4], dtype=torch.int32)
    given = {
        "mQ": q, "mK": kv[:, 0], "mV": kv[:, 1], "mO": torch.empty_like(q), "softmax_scale": GQA.scale, "mSeqUsedK": held,
        "mCuSeqlensQ": torch.tensor([0, 1, 5], dtype=torch.int32), "mPageTable": torch.zeros(2, 3, dtype=torch.int32),
        "window_size_left": -1, "window_size_right": -1, "max_seqlen_q": 8,
    }  # fmt: skip
    with pytest.raises(ValueError, match="Mismatched Tensor on argument #0"):
        run(**given)  # on the processor
    on_gpu = {k: standins.as_gpu_tensor(tvm_ffi, v) if isinstance(v, Tensor) else v for k, v in given.items()}
    with pytest.raises(RuntimeError, match=r"cudaErrorInsufficientDriver|cudaErrorNoDevice"):
        run(**on_gpu)  # every argument was accepted
    with pytest.raises(TypeError, match="Mismatched type"):
        run(**{**on_gpu, "softmax_scale": "a"})
