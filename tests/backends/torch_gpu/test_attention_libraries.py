"""Attention libraries against the dense computation, on stand-ins that compute what they were asked; and what each refuses,
in words. No library has been run on a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import standins
import torch

from thalweg.backends.cuda import CudaPlatform, flash3, flashinfer
from thalweg.backends.rocm import RocmPlatform, aiter
from thalweg.backends.torch_gpu import flash2, library, paged
from thalweg.backends.torch_gpu.attention import GatherAttention
from thalweg.backends.torch_gpu.device import GpuDevice
from thalweg.backends.torch_gpu.host import HostRuntime
from thalweg.hal.attention import AttnSpec, choose_attention
from thalweg.hal.device import DeviceInfo
from thalweg.hal.op import NOT_INVARIANT
from thalweg.hal.step import StepShape
from thalweg.hal.testing import sequences as seq
from thalweg.hal.testing import test_attention as kit

INFO = DeviceInfo("test", "test", 1 << 30, 1, ("bfloat16",))
LIBRARIES: dict[str, tuple[str, str, Any, int]] = {
    "flash-attn": ("flash_attn", "sm_80", flash2.load, 256),
    "flash-attn-3": ("flash_attn_interface", "sm_90", flash3.load, 16),
    "flashinfer": ("flashinfer", "sm_100", flashinfer.load, 16),
    "aiter": ("aiter", "gfx942", aiter.load, 16),
}
"""Name in the plan -> (package, an architecture it is for, loader, block size)"""
SPECS = {
    "mha": AttnSpec(2, 2, 128, 128**-0.5, "bfloat16"),
    "gqa": AttnSpec(6, 2, 128, 0.05, "float16"),
    "window": AttnSpec(4, 1, 128, 128**-0.5, "bfloat16", "window", 20),
    "softcap": AttnSpec(4, 2, 128, 128**-0.5, "bfloat16", softcap=5.0),
}


@pytest.fixture(autouse=True)
def _without_compiled_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The partner on a processor is torch's."""
    monkeypatch.setattr(paged, "partner", lambda arch: GatherAttention())


@pytest.fixture(params=LIBRARIES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def _loaded(name: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any, int]:
    package, arch, load, size = LIBRARIES[name]
    module: Any = standins.MODULES[package]()
    monkeypatch.setitem(sys.modules, package, module)
    (attention,) = load(arch).attention
    assert attention.name == name
    return attention, module.calls, size


@pytest.fixture
def device() -> GpuDevice:
    return GpuDevice(INFO, HostRuntime(), library.KernelSet())


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@pytest.mark.slow
def test_it_equals_dense_attention_in_mixed_steps_and_decodes_padded_or_not(
    device: GpuDevice, name: str, spec: AttnSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    attention, calls, size = _loaded(name, monkeypatch)
    if spec.softcap and name == "aiter":
        assert attention.supports(spec) == "has no soft cap"
        return
    assert attention.supports(spec) is None
    assert attention.refuses_blocks(size) is None
    decodes = [(length, 1) for length in (1, 37, size, 2 * size)]
    for mix, shape in (
        ([*decodes, (45, 20), (64, 64), (size + 40, 30), (3, 2)], None), (decodes, None),
        (decodes, StepShape(8, 8, 4, uniform=True)), (decodes, StepShape(40, 6, 4)),
    ):  # fmt: skip
        stories, cache, table, start = standins.fill_cache(device, attention, spec, mix, size)
        query = [s.query for s in stories]
        batch = replace(seq.batch_of(table, start, query), uniform=1 if mix == decodes else 0)
        got = cache.attend(batch, *seq.rows(stories, start, query), shape=shape)
        want = np.concatenate([seq.dense(s, spec, getattr(torch, spec.dtype)) for s in stories])
        assert np.abs(got - want).max() <= kit.TOLERANCE[spec.dtype] * np.abs(want).max()
    assert set(calls) & {"varlen", "run", "prefill"}


@pytest.mark.sampled(2)
def test_a_decode_is_captured_and_what_is_replayed_follows_the_new_lengths(
    device: GpuDevice, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three steps of one bucket: the second is recorded, the third replayed, each with one key more."""
    attention, calls, size = _loaded(name, monkeypatch)
    spec, shape = SPECS["gqa"], StepShape(4, 4, 3, uniform=True)
    stories, cache, table, start = standins.fill_cache(device, attention, spec, [(2 * size + 2, 3), (20, 3), (4, 3)], size)
    eager = len(calls)
    for step in range(3):
        at = [n + step for n in start]
        batch = replace(seq.batch_of(table, at, [1] * 3), uniform=1)
        got = cache.attend(batch, *seq.rows(stories, at, [1] * 3), shape=shape)
        want = np.stack([seq.dense(s, spec, torch.float16)[step] for s in stories])
        assert np.abs(got - want).max() <= kit.TOLERANCE["float16"] * np.abs(want).max()
    runtime: Any = device._runtime
    assert (runtime.captures, runtime.replays) == (1, 2)
    own = name in ("flash-attn", "flash-attn-3")
    assert calls[eager:] == (["kvcache"] * 2 if own else [])


def test_flashinfer_plans_once_a_step_for_all_layers_of_a_group_and_waits_for_its_last_copy(
    device: GpuDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    attention, calls, size = _loaded("flashinfer", monkeypatch)
    monkeypatch.setattr(flashinfer, "_when_done", lambda device: lambda: calls.append("waited"))
    spec, made = SPECS["mha"], kit.rng("layers")
    stories = [seq.story(made, spec, n, n) for n in (20, 5)]
    table, blocks = seq.tables(made, stories, size)
    batch = seq.batch_of(table, [0, 0], [20, 5])
    q, k, v = (torch.from_numpy(a).to(torch.bfloat16) for a in seq.rows(stories, [0, 0], [20, 5]))
    layers = [torch.zeros(blocks, 2, size, 2, 128, dtype=torch.bfloat16) for _ in range(3)]
    want = np.concatenate([seq.dense(s, spec, torch.bfloat16) for s in stories])
    for _ in range(2):
        step = replace(batch, metadata=(attention.metadata(batch, 0, spec, None),)).map(torch.from_numpy)
        for kv in layers:
            out, _ = attention.attend(q, k, v, kv, step, 0, spec)
            np.testing.assert_allclose(out.float().numpy(), want, atol=2e-2)
    assert calls == ["plan", "run", "run", "run", "waited", "plan", "run", "run", "run"]


def test_a_step_of_padding_alone_gives_zeros(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    attention, calls, size = _loaded(name, monkeypatch)
    spec = SPECS["mha"]
    batch = seq.batch_of(np.zeros((2, 1), np.int32), [0, 0], [3, 2])
    batch.slots[:] = 0
    step = replace(batch, metadata=(attention.metadata(batch, 0, spec, None),)).map(torch.from_numpy)
    x = torch.ones(5, 2, 128, dtype=torch.bfloat16)
    out, _ = attention.attend(x, x, x, torch.zeros(2, 2, size, 2, 128, dtype=torch.bfloat16), step, 0, spec)
    assert not out.any()
    assert not calls


BASE = AttnSpec(8, 2, 128, 0.1, "bfloat16")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"dtype": "float32"}, "runs bfloat16 and float16, not float32"),
        ({"kv_dtype": "float8_e4m3fn"}, "the cache holds bfloat16, not float8_e4m3fn"),
        ({"sinks": True}, "has no sinks"),
        ({"kind": "latent", "latent": 64, "kv_heads": 1}, "runs kinds full and window, not latent"),
        ({"heads": 9}, "9 heads do not share 2 KV heads evenly"),
    ],
)
def test_every_library_refuses_what_it_lacks(
    name: str, change: dict[str, Any], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    attention, *_ = _loaded(name, monkeypatch)
    assert attention.supports(BASE) is None
    assert attention.supports(replace(BASE, **change)) == why


@pytest.mark.parametrize(
    ("name", "head_dim", "why"),
    [
        ("flash-attn", 288, "runs head sizes up to 256 that 8 divides, not 288"),
        ("flash-attn", 100, "runs head sizes up to 256 that 8 divides, not 100"), ("flash-attn-3", 96, None),
        ("flashinfer", 96, "runs head sizes 64, 128, 256, not 96"), ("aiter", 64, "runs head sizes 128, not 64"),
    ],
)  # fmt: skip
def test_head_sizes_without_a_kernel_are_refused(
    name: str, head_dim: int, why: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    attention, *_ = _loaded(name, monkeypatch)
    assert attention.supports(replace(BASE, head_dim=head_dim)) == why


@pytest.mark.parametrize(
    ("name", "size", "why"),
    [
        ("flash-attn", 16, "runs blocks whose tokens 256 divides, not 16 (--block-size 256)"), ("flash-attn", 512, None),
        ("flash-attn-3", 16, None), ("flashinfer", 8, None), ("aiter", 32, "runs blocks of 16 or 1024 tokens, not 32"),
    ],
)  # fmt: skip
def test_block_sizes_that_do_not_suit_are_refused_when_a_layer_chooses(
    name: str, size: int, why: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    attention, *_ = _loaded(name, monkeypatch)
    chosen, refused = choose_attention([attention, GatherAttention()], BASE, block_tokens=size)
    assert (chosen.name, refused) == ((name, ()) if why is None else ("torch-gather", ((name, why),)))


def test_no_library_is_used_where_rows_must_not_depend_on_the_batch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    attention, _, size = _loaded(name, monkeypatch)
    chosen, refused = choose_attention([attention, GatherAttention()], BASE, batch_invariant=True, block_tokens=size)
    assert (chosen.name, refused) == ("torch-gather", ((name, NOT_INVARIANT),))


@pytest.mark.parametrize(
    ("name", "arch", "why"),
    [
        ("flash-attn", "sm_75", "runs on sm_80 and later and on gfx90a, gfx942 and gfx950, not sm_75"),
        ("flash-attn", "gfx1100", "runs on sm_80 and later and on gfx90a, gfx942 and gfx950, not gfx1100"),
        ("flash-attn-3", "sm_100", "runs on sm_90, not sm_100"), ("flashinfer", "sm_75", "runs on sm_80 and later, not sm_75"),
        ("aiter", "gfx90a", "runs on gfx942 and gfx950, not gfx90a"),
    ],
)  # fmt: skip
def test_an_architecture_it_is_not_built_for_is_refused_before_the_package_is_looked_for(
    name: str, arch: str, why: str
) -> None:
    with pytest.raises(RuntimeError) as e:
        LIBRARIES[name][2](arch)
    assert str(e.value) == why


def test_a_package_that_is_absent_broken_too_old_or_another_is_told_apart(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    package, arch, load, _ = LIBRARIES[name]

    def said() -> str:
        with pytest.raises(ImportError) as e:
            load(arch)
        return str(e.value)

    assert said() == f"{package} is not installed"
    monkeypatch.setitem(sys.modules, package, ModuleType(package))
    assert "it is too old, or another package of that name" in said()
    old = ModuleType(package)
    old.__version__ = "0.0.1"  # type: ignore[attr-defined]
    for known in vars(standins.MODULES[package]()):
        if known[0].isupper() or known.startswith(("flash", "mha")):
            setattr(old, known, lambda q, k, v: q)
    monkeypatch.setitem(sys.modules, package, old)
    assert f"{package} 0.0.1: " in said()
    assert said().endswith(": it is too old")


def test_what_a_package_raises_while_it_is_imported_is_its_reason(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "aiter.py").write_text("raise AssertionError('No gfx arch found\\nmore lines')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ImportError, match=r"^aiter does not load: No gfx arch found$"):
        aiter.load("gfx950")
    parts = library.assemble("gfx950", RocmPlatform().vendors(), lambda arch: library.KernelSet())
    assert [a.name for a in parts.attention] == ["aiter", "flash-attn", "torch-gather", "torch-encoder", "torch-gather-blocks"]
    assert [a.supports(BASE) for a in parts.attention] == [
        "aiter does not load: No gfx arch found", "flash_attn is not installed", None, "runs kind encoder, not full",
        "is for blocks whose tokens see each other",
    ]  # fmt: skip


def test_a_library_is_loaded_when_a_layer_may_use_it_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    load = flash3.load

    def remember(arch: str) -> library.KernelSet:
        asked.append(arch)
        return load(arch)

    monkeypatch.setattr(flash3, "load", remember)
    monkeypatch.setitem(sys.modules, "flash_attn_interface", standins.flash_attn_interface())
    parts = library.assemble("sm_90", CudaPlatform().vendors(), lambda arch: library.KernelSet())
    chosen, refused = choose_attention(parts.attention, BASE, batch_invariant=True, block_tokens=16)
    assert (chosen.name, asked) == ("torch-gather", [])
    assert refused == tuple((name, NOT_INVARIANT) for name in ("flash-attn-3", "flashinfer", "flash-attn"))
    chosen, _ = choose_attention(parts.attention, BASE, block_tokens=16)
    assert (chosen.name, chosen.supports(BASE), asked) == ("flash-attn-3", None, ["sm_90"])
    assert chosen.layout(BASE, 16) == GatherAttention().layout(BASE, 16)


def test_scratch_memory_is_planned_for_the_library_that_asks_for_it_where_it_may_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    from thalweg.backends import cuda
    from thalweg.backends.torch_gpu.platform import GpuOptions
    from thalweg.hal.platform import StepSizes

    fields = {name: 16 for name in StepSizes.__dataclass_fields__ if name != "batch_invariant"}
    exact, any_kernel = (StepSizes(**fields, batch_invariant=b) for b in (True, False))
    without = CudaPlatform().workspace(any_kernel)
    monkeypatch.setattr(cuda, "find_spec", lambda name: name == "flashinfer")
    assert CudaPlatform().workspace(any_kernel) == without + (128 << 20)
    assert CudaPlatform().with_options(GpuOptions()).workspace(any_kernel) == without + (128 << 20)
    assert CudaPlatform().workspace(exact) == without  # flashinfer is refused there: see the test above


def test_pages_are_listed_as_the_table_has_them() -> None:
    rng = kit.rng("pages")
    for _ in range(20):
        size, lengths = int(rng.integers(1, 9)), rng.integers(1, 40, int(rng.integers(1, 6))).astype(np.int32)
        table = rng.integers(1, 100, (len(lengths), 40)).astype(np.int32)
        each = [-(-int(n) // size) for n in lengths]
        first, used, last = paged.pages(torch.from_numpy(table), torch.from_numpy(lengths), sum(each), size)
        assert used.tolist() == [int(b) for row, n in zip(table, each, strict=True) for b in row[:n]]
        assert first.tolist() == [sum(each[:i]) for i in range(len(each) + 1)]
        assert last.tolist() == [int(n) - (m - 1) * size for n, m in zip(lengths, each, strict=True)]


def test_the_partner_is_triton_s_attention_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    pytest.importorskip("triton")
    assert isinstance(paged.partner("sm_90"), library.triton("sm_90").attention[0].__class__)
    assert isinstance(paged.partner("mystery9"), GatherAttention)
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "thalweg.backends.triton_kernels.attention", raising=False)
    for module in [m for m in sys.modules if m.startswith("thalweg.backends.triton_kernels.")]:
        monkeypatch.delitem(sys.modules, module)
    assert isinstance(paged.partner("sm_90"), GatherAttention)


@pytest.mark.nightly
@pytest.mark.slow
def test_the_kit_takes_up_every_library_of_a_device_by_itself() -> None:
    """So does `ci/gpu/run`, whose first part it is, on a machine where one is installed."""
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--pyargs", "thalweg.hal.testing", "-vv", "-k"]
    command += ["bfloat16 and gqa and (test_a_step or test_mixed and 16)", "--platform=standins:LibrariesPlatform"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path})
    assert done.returncode == 0, done.stdout[-3000:]
    passed = {line.split("[")[1].split("]")[0] for line in done.stdout.splitlines() if "PASSED" in line}
    assert {f"{name}-gqa-bfloat16" for name in ("flash-attn-3", "flash-attn", "flashinfer")} <= passed
    assert {f"{name}-gqa-bfloat16-16" for name in ("flash-attn-3", "flashinfer")} <= passed
    assert "flash-attn-gqa-bfloat16-16" not in passed
