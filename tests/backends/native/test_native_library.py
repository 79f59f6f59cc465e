"""Finding, choosing and refusing the compiled library, and what the kernel plan says without it."""

from __future__ import annotations

import ctypes
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from thalweg.backends import lean_torch
from thalweg.backends.cpu import CpuOptions, CpuPlatform, native
from thalweg.backends.cpu.native import NativeLibrary, NoLibraryError, open_library
from thalweg.backends.cpu.native.linear import kernels
from thalweg.backends.cpu.native.peak import read_rate
from thalweg.errors import DeviceError
from thalweg.hal import ops
from thalweg.hal.op import Binder
from thalweg.hal.platform import Place
from thalweg.hal.weights import DENSE, QTensor

FACTS = {"dtype": "float32", "in_features": 8, "out_features": 8, "weight": DENSE}


def test_the_plan_names_the_instruction_set(library: NativeLibrary) -> None:
    device = CpuPlatform().with_options(CpuOptions(isa=library.level)).open(Place())
    choice = Binder(device.kernels).bind(ops.linear, **FACTS).choice
    assert choice.kernel == f"native-{library.level}"
    assert choice.batch_invariant
    assert not choice.refused


def test_without_a_library_torch_serves_and_the_plan_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(native, "LIBRARY", tmp_path / "none.so")
    device = CpuPlatform().with_options(CpuOptions()).open(Place())
    choice = Binder(device.kernels).bind(ops.linear, **FACTS).choice
    assert choice.kernel == "onednn-variant"
    assert "no compiled kernels: the package was installed without a C++ compiler" in str(choice)


def test_a_file_that_is_no_library_or_of_another_version_is_refused(
    library: NativeLibrary, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(native, "ABI", 0)
    with pytest.raises(NoLibraryError, match="another version"):
        open_library(1)
    (tmp_path / "broken.so").write_text("no machine code")
    monkeypatch.setattr(native, "LIBRARY", tmp_path / "broken.so")
    with pytest.raises(NoLibraryError, match="does not load"):
        open_library(1)


def test_the_library_is_there_before_torchs_begins_to_load_and_is_not_asked_for_again(
    library: NativeLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system loads one library at a time. Torch's takes long."""
    loaded: list[str] = []
    real = ctypes.CDLL

    def loads(path: str) -> ctypes.CDLL:
        loaded.append(path)
        return real(path)

    monkeypatch.setattr(ctypes, "CDLL", loads)
    monkeypatch.setattr(lean_torch, "load_library", lambda: loaded.append("torch"))
    native._load_library.cache_clear()
    CpuPlatform().begin()
    assert native.levels()
    native.settle()
    assert loaded == [str(native.LIBRARY), "torch"]


def test_none_turns_the_library_off_and_an_unknown_set_is_an_error(library: NativeLibrary) -> None:
    device = CpuPlatform().with_options(CpuOptions(isa="none")).open(Place())
    assert "turned off" in str(Binder(device.kernels).bind(ops.linear, **FACTS).choice)
    with pytest.raises(DeviceError, match=r"isa: 'mmx' is not there.*portable.*none"):
        CpuPlatform().with_options(CpuOptions(isa="mmx")).open(Place())


def test_threads_change_no_bit_and_contexts_do_not_disturb_each_other(library: NativeLibrary) -> None:
    weight, x = torch.randn(500, 300), torch.randn(70, 300)
    outs: dict[int, torch.Tensor] = {}

    def work(threads: int) -> None:
        kernel, *_ = kernels(open_library(threads, library.level))
        packed = kernel.pack(QTensor(DENSE, (500, 300), {"weight": weight}))
        for _ in range(20):
            outs[threads] = kernel.run(x, packed)

    parallel = [threading.Thread(target=work, args=(n,)) for n in (1, 2, 5)]
    for t in parallel:
        t.start()
    for t in parallel:
        t.join()
    assert torch.equal(outs[1], outs[2])
    assert torch.equal(outs[1], outs[5])


ROUNDS = {
    "portable": (96, 0, 0, 0), "avx2": (192, 0, 384, 768), "avxvnni": (192, 0, 768, 768),
    "avx512": (384, 0, 768, 1536), "avx512vnni": (384, 0, 1536, 1536), "avx512bf16": (384, 768, 1536, 1536),
    "amx": (384, 12 * 16 * 16 * 32 * 2, 12 * 16 * 16 * 64 * 2, 1536),
    "neon": (96, 0, 0, 0), "neondot": (96, 0, 384, 384), "neonbf16": (96, 192, 384, 384),
}  # fmt: skip
"""Operations of a round of twelve instructions, by type: lanes x products of a lane x 2, and of a tile all of its products."""


@pytest.mark.slow
def test_the_peak_counts_what_its_instructions_do(library: NativeLibrary) -> None:
    for kind, each in enumerate(ROUNDS.get(library.level, ROUNDS["portable"])):
        assert library.peak(library.context, kind, 3) == 2 * 8 * 3 * each
    device = CpuPlatform().with_options(CpuOptions(isa=library.level)).open(Place())
    assert all((device.peak(dtype) or 0) > 0 for dtype in ("float32", "bfloat16", "int8", "int4"))
    assert CpuPlatform().with_options(CpuOptions(isa="none")).open(Place()).peak("float32") is None


def test_a_plain_read_reads_every_word_once(library: NativeLibrary) -> None:
    for words in (8, 24, 1 << 17, (1 << 17) + 8, 5 << 17):
        memory = np.random.default_rng(words).integers(0, 1 << 40, words, np.int64)
        assert library.read(library.context, memory.ctypes.data, memory.nbytes) == memory.sum()
    assert read_rate(library, 1 << 20) > 0
    assert CpuPlatform().with_options(CpuOptions(isa="none")).open(Place()).read_rate() is None
