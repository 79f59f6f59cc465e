"""Which kernel serves what on every known architecture is what is committed; what is missing is said, not skipped over."""

from __future__ import annotations

from collections import Counter
from typing import Any

import golden
import pytest
import torch

from thalweg.backends.torch_gpu import library
from thalweg.backends.torch_gpu.arch import ARCHES, Arch
from thalweg.hal import ops
from thalweg.hal.attention import AttnSpec
from thalweg.hal.op import Binder, Kernel, StrictKernelError

SPEC = AttnSpec(8, 2, 64, 0.125, "bfloat16")


@pytest.mark.parametrize("arch", golden.arches(), ids=lambda a: a.name)
def test_the_plan_without_compiled_kernels_is_the_committed_one(arch: Arch) -> None:
    assert golden.plan(arch, golden.absent) == (golden.FOLDER / f"{arch.name}.txt").read_text(), (
        "golden.py --write shows the change"
    )


@pytest.mark.parametrize("arch", golden.arches(), ids=lambda a: a.name)
def test_the_plan_with_compiled_kernels_is_the_committed_one(arch: Arch) -> None:
    if not golden.has_library():
        pytest.skip("Triton is not installed here")
    assert golden.plan(arch, library.triton) == (golden.FOLDER / f"{arch.name}-triton.txt").read_text()


@pytest.mark.parametrize(("arch", "package"), golden.INSTALLED)
def test_the_plan_where_an_attention_library_is_installed_is_the_committed_one(arch: str, package: str) -> None:
    if not golden.has_library():
        pytest.skip("Triton is not installed here")
    made = golden.plan(ARCHES[arch], library.triton, package, golden.INSTALLED[arch, package])
    assert made == (golden.FOLDER / f"{arch}-{package}.txt").read_text()


def test_an_attention_library_changes_attention_where_it_fits_and_batches_may_matter_and_nothing_else() -> None:
    """Refused kernels apart: those of the plan without it. Libraries take q and k already rotated, by an op that Triton's
    attention does itself."""
    for arch, package in golden.INSTALLED:
        names = [f"{arch}-triton.txt", f"{arch}-{package}.txt"]
        before, after = (Counter(map(_chosen, (golden.FOLDER / n).read_text().splitlines())) for n in names)
        lost, won = (sorted(line.split("(")[0] for line in d.elements()) for d in (before - after, after - before))
        assert (lost, won) in (([], []), (["attend_fused", "attention"], ["attention", "rope"]))
        assert bool(won) == ((arch, package) not in {("sm_90", "flash_attn"), ("sm_75", "flashinfer")})


def _chosen(line: str) -> str:
    return line.split(";")[0]


def _vendor(name: str, kernel: str, fails: Exception | None = None) -> library.Vendor:
    def load(arch: str) -> library.KernelSet:
        if fails is not None:
            raise fails
        return library.KernelSet((Kernel("rms_norm", kernel, ops.rms_norm.reference, batch_invariant=True),))

    return library.Vendor(name, ("rms_norm",), True, load)


@pytest.mark.parametrize(
    "fails",
    [ImportError("no module of that name"), RuntimeError("needs a visible GPU\nand more lines"), OSError("lib.so: not found")],
)
def test_a_vendor_library_that_fails_costs_its_kernels_and_says_why(fails: Exception) -> None:
    parts = library.assemble("sm_90", (_vendor("fast", "fast", fails), _vendor("second", "second")), golden.absent)
    binder = Binder(parts.kernels)
    choice = binder.bind(ops.rms_norm, eps=1e-5, dtype="bfloat16", size=8).choice
    assert choice.kernel == "second"
    assert choice.refused == (("fast", str(fails).splitlines()[0]),)
    assert [(a.name, a.supports(SPEC)) for a in parts.attention] == [
        ("fast", str(fails).splitlines()[0]), ("triton", "triton is not installed"), ("torch-gather", None),
        ("torch-encoder", "runs kind encoder, not full"), ("torch-gather-blocks", "is for blocks whose tokens see each other"),
    ]  # fmt: skip


def test_an_error_of_ours_is_not_taken_for_a_missing_library() -> None:
    def broken(arch: str) -> Any:
        raise TypeError("a mistake")

    with pytest.raises(TypeError):
        library.assemble("sm_90", (), broken)


def test_strict_kernels_refuse_to_run_without_them() -> None:
    parts = library.assemble("sm_90", (), golden.absent)
    with pytest.raises(StrictKernelError, match="triton is not installed"):
        Binder(parts.kernels, strict=True).bind(ops.truncate, dtype="float32", vocab=10)


def test_tiles_multiply_as_the_reference_does_and_rows_do_not_see_each_other() -> None:
    """Whole numbers, whose sums are the same in any order: the host's matrix library makes no promise about that."""
    tiles = next(k for k in library.assemble("sm_90", (), golden.absent).kernels if k.name == "torch-tiles")
    x, w, b = (torch.randint(-8, 9, shape).float() for shape in ((300, 96), (40, 96), (40,)))
    whole = tiles.run(x, w, b)
    assert torch.equal(whole, x @ w.t() + b)
    for rows in (slice(7, 8), slice(0, 128), slice(100, 229), slice(0, 0)):
        assert torch.equal(tiles.run(x[rows], w, b), whole[rows])
    assert tiles.run(x.view(3, 100, 96), w).shape == (3, 100, 40)
