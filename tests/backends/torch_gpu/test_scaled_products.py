"""Linear layers with rounded inputs through torch's matrix libraries, whose products torch also has for a processor: against
the definition, in the conformance kit's own cases and beyond; who runs few rows; and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from thalweg.backends.torch_gpu import scaled
from thalweg.backends.torch_gpu.device import GpuDevice
from thalweg.backends.torch_gpu.host import HostRuntime
from thalweg.backends.torch_gpu.library import KernelSet, assemble, matrix_library
from thalweg.hal import ops
from thalweg.hal.device import DeviceInfo
from thalweg.hal.op import Kernel
from thalweg.hal.ops.quantise import quantise
from thalweg.hal.testing import test_ops as kit
from thalweg.hal.weights import DENSE, QTensor, WeightFormat

E4M3 = "float8_e4m3fn"
FORMATS = {
    "float8 rows": WeightFormat("float", 8, act=E4M3), "float8 tensor": WeightFormat("float", 8, -1, act=E4M3),
    "int8 rows": WeightFormat("int", 8, act="int8"), "int8 tensor": WeightFormat("int", 8, -1, act="int8"),
}  # fmt: skip
ARCHES = {"torch-float8": ("sm_89", "sm_90", "sm_120", "gfx942", "gfx950"), "torch-int8": ("sm_75", "sm_90", "gfx90a")}
CASES = [(name, arch, label) for name, arches in ARCHES.items() for arch in arches for label in FORMATS if name[6:] in label]


def _scales_rows() -> bool:
    """Does this torch's product for the processor take a scale per row? 2.11's takes one for all."""
    rows, weight = (torch.zeros(n, 16).to(torch.float8_e4m3fn) for n in (2, 32))
    try:
        torch._scaled_mm(rows, weight.t(), torch.ones(2, 1), torch.ones(1, 32), out_dtype=torch.bfloat16)
    except RuntimeError:
        return False
    return True


SCALES_ROWS = _scales_rows()


def _multiplies(name: str) -> None:
    """Skips what this torch can multiply on a GPU alone."""
    if "float8" in name and not SCALES_ROWS:
        pytest.skip(f"torch {torch.__version__} multiplies 8-bit floats with a scale per row on GPUs alone")


def test_only_a_torch_that_is_old_leaves_products_out() -> None:
    assert SCALES_ROWS or torch.__version__ < "2.12"


def _kernel(name: str, arch: str, h: scaled.Helpers = scaled.ALONE) -> Kernel:
    (kernel,) = [k for k in scaled.kernels(arch, h) if k.name == name]
    return kernel


def _spec(format: WeightFormat, dtype: str = "bfloat16", sizes: tuple[int, int] = (64, 48)) -> dict[str, Any]:
    return {"in_features": sizes[0], "out_features": sizes[1], "dtype": dtype, "weight": format}


@pytest.mark.parametrize(("name", "arch", "label"), CASES)
@pytest.mark.parametrize("rows", [1, 40])
def test_the_product_is_the_definition_s(name: str, arch: str, label: str, rows: int) -> None:
    kernel, format = _kernel(name, arch), FORMATS[label]
    assert kernel.supports(_spec(format)) is None
    _multiplies(name)
    x, w, bias = (torch.randn(s).to(torch.bfloat16) for s in ((2, rows, 64), (48, 64), (48,)))
    x[0, 0, ::3] = -1e-7  # rounds to -0, which one vendor's 8-bit float takes for no number
    w[:, 5] = -1e-7
    x[0, 0, 1], w[3] = 300.0, 0.0
    weight = quantise(w, format)
    got = kernel.run(x, kernel.pack(weight), bias, act=format.act, group=format.group)
    want = ops.linear(x, dict(weight.data), bias, act=format.act, group=format.group)
    assert got.shape == want.shape
    assert got.dtype == x.dtype
    assert (got - want).abs().max() <= 1e-2 * want.abs().max()
    assert kernel.run(x, kernel.pack(weight), act=format.act, group=format.group).shape == want.shape


@pytest.mark.parametrize(("name", "arch"), [("torch-float8", "sm_90"), ("torch-float8", "gfx942"), ("torch-int8", "sm_90")])
def test_it_passes_the_kit_s_cases_of_its_format(name: str, arch: str) -> None:
    _multiplies(name)
    kernel, ran = _kernel(name, arch), 0
    device = GpuDevice(DeviceInfo("test", "test", 1 << 30, 1, ("bfloat16",)), HostRuntime(), KernelSet((kernel,)))
    for sample in ops.linear.samples:
        spec = {"in_features": 256, "out_features": 80, "dtype": "bfloat16", "weight": DENSE} | sample.static
        if kernel.supports(spec) is None:
            kit.test_kernel_gives_what_the_reference_body_gives(device, (ops.linear, sample, "bfloat16", kernel))
            ran += 1
    assert ran == 1


@pytest.mark.parametrize("label", ["float8 rows", "int8 rows"])
def test_few_rows_are_the_fused_product_s_and_many_are_the_library_s(label: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _multiplies(label)
    format, fused, products = FORMATS[label], [], []
    for product in ("_scaled_mm", "_int_mm"):
        monkeypatch.setattr(torch, product, _recording(getattr(torch, product), products))

    def few(
        rows: Tensor, scale: Tensor, weight: Any, bias: Tensor | None, dtype: torch.dtype, *, act: str, group: int
    ) -> Tensor:
        fused.append((rows.shape, act, group))
        x = (rows.float() * scale[:, None]).to(dtype)
        return ops.linear(x, {"codes": codes, "scales": weight["scales"].t()}, bias, act=act, group=group)

    kernel = _kernel(f"torch-{label[: -len(' rows')]}", "sm_90", scaled.Helpers(scaled.in_torch, lambda act: few))
    weight = quantise(torch.randn(48, 64), format)
    codes, packed = weight.data["codes"], kernel.pack(weight)
    assert (packed["codes"].shape, packed["scales"].shape) == ((48, 64), (1, 48))
    for n in (scaled.FEW, scaled.FEW + 1):
        kernel.run(torch.randn(n, 64).to(torch.bfloat16), packed, act=format.act, group=0)
    assert fused == [((scaled.FEW, 64), format.act, 0)]
    assert products == [(scaled.FEW + 1, 64)]
    kernel.run(torch.randn(3, 64).to(torch.bfloat16), packed, torch.randn(48).to(torch.bfloat16), act=format.act, group=0)
    assert len(fused) == (1 if format.kind == "float" else 2), "a bias of floats is added by one of the two"


def _recording(f: Callable[..., Tensor], seen: list[tuple[int, ...]]) -> Callable[..., Tensor]:
    def run(x: Tensor, *rest: Any, **more: Any) -> Tensor:
        seen.append(tuple(x.shape))
        return f(x, *rest, **more)

    return run


def test_integers_are_multiplied_by_enough_rows_for_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """`_int_mm` refuses 16 rows or fewer on a GPU."""
    products: list[tuple[int, ...]] = []
    monkeypatch.setattr(torch, "_int_mm", _recording(torch._int_mm, products))
    format, kernel = FORMATS["int8 rows"], _kernel("torch-int8", "sm_80")
    kernel.run(torch.randn(3, 64), kernel.pack(quantise(torch.randn(48, 64), format)), act="int8", group=0)
    assert products == [(scaled.LEAST_INT, 64)]


@pytest.mark.parametrize(
    ("name", "arch", "spec", "why"),
    [
        ("torch-float8", "sm_80", _spec(FORMATS["float8 rows"]), "sm_80 multiplies no 8-bit floats"),
        ("torch-float8", "gfx90a", _spec(FORMATS["float8 rows"]), "gfx90a multiplies no 8-bit floats"),
        ("torch-float8", "sm_90", _spec(FORMATS["float8 rows"], "float16"), "gives bfloat16, not float16"),
        ("torch-float8", "sm_90", _spec(FORMATS["float8 rows"], sizes=(64, 40)), "runs sizes that 16 divides, not 64 x 40"),
        ("torch-int8", "sm_80", _spec(FORMATS["int8 rows"], sizes=(60, 40)), "runs sizes that 8 divides, not 60 x 40"),
        ("torch-int8", "gfx1100", _spec(FORMATS["int8 rows"]), "gfx1100 has no library of integer products"),
        ("torch-int8", "sm_80", _spec(DENSE),
         "runs int8 weights with int8 inputs and a scale per row or tensor, not dense"),
        ("torch-float8", "sm_90", _spec(WeightFormat("float", 8, 128, act=E4M3)),
         f"runs float8 weights with {E4M3} inputs and a scale per row or tensor, not float8-g128-{E4M3}"),
        ("torch-int8", "sm_80", _spec(WeightFormat("int", 8)),
         "runs int8 weights with int8 inputs and a scale per row or tensor, not int8-row"),
    ],
)  # fmt: skip
def test_what_it_cannot_run_is_refused_in_words(name: str, arch: str, spec: dict[str, Any], why: str) -> None:
    assert _kernel(name, arch).supports(spec) == why


def test_floats_are_offered_before_triton_s_and_claim_of_batches_what_a_device_has_shown() -> None:
    found = {
        arch: [k for k in matrix_library(arch).kernels if k.op == "linear"] for arch in ("sm_90", "sm_100", "gfx942", "xe2")
    }
    names = {arch: [k.name for k in kernels] for arch, kernels in found.items()}
    assert names["sm_90"] == ["torch-variant", "torch-no-split-k", "torch-float8"]
    invariant = {arch: [k.name for k in found[arch] if k.batch_invariant] for arch in ("sm_90", "sm_100")}
    assert invariant == {"sm_90": ["torch-no-split-k", "torch-float8"], "sm_100": ["torch-no-split-k"]}
    assert names["gfx942"] == ["torch-variant", "torch-float8", "torch-int8"]
    assert names["xe2"] == ["torch-variant"]


def test_norms_and_gates_that_round_are_offered_where_triton_is() -> None:
    """Of the product's claims and weight."""
    pytest.importorskip("triton")
    product, *joined = [k for k in matrix_library("sm_90").kernels if k.name == "torch-float8"]
    assert [k.op for k in joined] == ["rms_norm_linear", "act_and_mul_linear"]
    assert {(k.pack, k.batch_invariant) for k in joined} == {(product.pack, product.batch_invariant)}
    assert [k.op for k in scaled.kernels("sm_90", scaled.ALONE)] == ["linear", "linear"]
    facts = _spec(FORMATS["float8 rows"]) | {"gate": "silu"}
    assert [k.supports(facts) for k in joined] == [None, None]
    assert joined[1].supports(facts | {"gate": "relu"})
    assert all(k.supports(_spec(DENSE)) == product.supports(_spec(DENSE)) for k in joined)


@pytest.mark.parametrize("rows", [3, 100])
def test_the_library_multiplies_codes_that_norms_and_gates_made(rows: int) -> None:
    _multiplies("torch-float8")

    def norm(x: Tensor, residual: Any, weight: Tensor, eps: float, offset: float, act: str) -> tuple[Tensor, Tensor, Tensor]:
        normed, total = ops.add_rms_norm(x, residual, weight, eps=eps, offset=offset)
        return *scaled.in_torch(normed.reshape(-1, 64), act), total

    def gate(x: Tensor, name: str, act: str) -> tuple[Tensor, Tensor]:
        return scaled.in_torch(ops.act_and_mul(x, act=name).reshape(-1, 64), act)

    h = scaled.Helpers(scaled.in_torch, lambda act: None, norm, gate, lambda op, fits: fits)
    kernels = {k.op: k for k in scaled.kernels("sm_90", h) if k.name == "torch-float8"}
    format, draw = FORMATS["float8 rows"], lambda *shape: torch.randn(*shape).to(torch.bfloat16)
    static = {"act": format.act, "group": 0}
    packed = kernels["linear"].pack(quantise(torch.randn(48, 64), format))
    x, residual, weight, bias = draw(1, rows, 64), draw(1, rows, 64), draw(64), draw(48)
    normed, total = ops.add_rms_norm(x, residual, weight, eps=1e-5)
    got, sums = kernels["rms_norm_linear"].run(x, residual, weight, packed, bias, eps=1e-5, **static)
    assert torch.equal(sums, total)
    assert torch.equal(got, kernels["linear"].run(normed, packed, bias, **static))
    both = draw(1, rows, 128)
    got = kernels["act_and_mul_linear"].run(both, packed, gate="silu", **static)
    assert torch.equal(got, kernels["linear"].run(ops.act_and_mul(both), packed, **static))


def test_integers_are_triton_s_on_nvidia_s_devices_and_the_library_s_without_it() -> None:
    def triton(arch: str) -> KernelSet:
        return KernelSet((Kernel("linear", "triton-int8-int8", torch.mm),))

    for compiled, first in ((triton, "triton-int8-int8"), (lambda arch: KernelSet(), "torch-int8")):
        kernels = [k for k in assemble("sm_90", (), compiled).kernels if "int8" in k.name]
        assert kernels[0].name == first


def test_codes_of_another_type_are_an_error_when_packed() -> None:
    weight = quantise(torch.randn(48, 64), FORMATS["float8 rows"])
    other = QTensor(weight.format, weight.shape, dict(weight.data) | {"codes": weight.data["codes"].to(torch.float8_e5m2)})
    with pytest.raises(ValueError, match=r"float8_e4m3fn, not torch\.float8_e5m2"):
        _kernel("torch-float8", "sm_90").pack(other)


@pytest.mark.parametrize("arch", ["sm_90", "gfx942"])
def test_the_packed_weight_is_the_one_triton_s_product_reads(arch: str) -> None:
    """Else few rows and many would need two copies of it."""
    quantised = pytest.importorskip("thalweg.backends.triton_kernels.quantised", exc_type=ImportError)
    tiles = pytest.importorskip("thalweg.backends.triton_kernels.tiles").tiles(arch)
    for format in FORMATS.values():
        dense = torch.randn(48, 64)
        dense[:, 5] = -1e-7  # rounds to -0
        weight = quantise(dense, format)
        ours, theirs = _kernel(f"torch-{format.kind}8", arch).pack(weight), quantised.pack(tiles, weight)
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[k].view(torch.uint8), theirs[k].view(torch.uint8)) for k in ours)
    assert scaled.helpers("sm_90").few("int8") is not None
    assert scaled.helpers("mystery9") is scaled.ALONE
