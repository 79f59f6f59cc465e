"""What the GPU platforms say and choose on machines of every known kind, and the one sentence each says when it cannot run."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from machines import FakeDriver, amd, intel, nvidia, opened, torch_folder, write

from thalweg import LLM
from thalweg.backends.cuda import CudaPlatform
from thalweg.backends.rocm import RocmPlatform, gfx
from thalweg.backends.torch_gpu import platform as platform_module
from thalweg.backends.torch_gpu.arch import ARCHES, GIB, arch_of, defaults
from thalweg.backends.torch_gpu.platform import GRAPH_BYTES, GpuOptions, GpuPlatform, TorchBuild, torch_build
from thalweg.backends.xpu import XpuPlatform
from thalweg.config import EngineArgs
from thalweg.engine.planning import resolve
from thalweg.errors import ConfigError, DeviceError
from thalweg.hal import discovery, ops
from thalweg.hal.op import Binder
from thalweg.hal.platform import Defaults, Limits, ModelInfo, Parallel, Place, Probe, StepSizes
from thalweg.hal.weights import DENSE, WeightFormat

LLAMA = ModelInfo("LlamaForCausalLM", "bfloat16", 32, 4096, 32, 8, 128, 128_256, 131_072, 16 << 30)
NVIDIA = {
    "NVIDIA H200": ("sm_90", 141), "NVIDIA H100 80GB HBM3": ("sm_90", 80), "NVIDIA H100 PCIe": ("sm_90", 80),
    "NVIDIA GH200 480GB": ("sm_90", 96), "NVIDIA GH200 144G HBM3e": ("sm_90", 144),
    "NVIDIA H20": ("sm_90", 96), "NVIDIA B200": ("sm_100", 180),
    "NVIDIA B300 SXM6 AC": ("sm_103", 288), "NVIDIA A100-SXM4-80GB": ("sm_80", 80), "NVIDIA A100-PCIE-40GB": ("sm_80", 40),
    "NVIDIA A10G": ("sm_86", 24), "NVIDIA A10": ("sm_86", 24), "NVIDIA L4": ("sm_89", 24), "NVIDIA L40S": ("sm_89", 48),
    "NVIDIA RTX 6000 Ada Generation": ("sm_89", 48), "NVIDIA RTX A6000": ("sm_86", 48),
    "NVIDIA GeForce RTX 4090": ("sm_89", 24), "NVIDIA GeForce RTX 5090": ("sm_120", 32),
    "NVIDIA GeForce RTX 3090": ("sm_86", 24),
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": ("sm_120", 96), "NVIDIA GB10": ("sm_121", 128), "Tesla T4": ("sm_75", 8),
    "Tesla V100-SXM2-16GB": ("sm_70", 16), "NVIDIA A40": ("sm_86", 48), "NVIDIA A30": ("sm_80", 24), "NVIDIA A2": ("sm_86", 16),
    "NVIDIA GeForce RTX 4070": ("sm_89", 12), "Orin": ("sm_87", 32), "NVIDIA A100X": ("sm_80", 40),
}  # fmt: skip


@pytest.mark.parametrize("model", NVIDIA)
def test_nvidia_cards_are_known_by_the_driver_s_names(model: str, tmp_path: Path) -> None:
    nvidia(tmp_path, model)
    (card,) = CudaPlatform(tmp_path).cards()
    assert (card.name, card.arch, card.memory_bytes // GIB) == (model, *NVIDIA[model])


def test_amd_cards_tell_architecture_and_memory_themselves(tmp_path: Path) -> None:
    amd(tmp_path, (90402, 192), (90500, 288), (120001, 16))
    cards = RocmPlatform(tmp_path).cards()
    assert [(c.arch, c.memory_bytes // GIB) for c in cards] == [("gfx942", 192), ("gfx950", 288), ("gfx1201", 16)]


@pytest.mark.parametrize(("number", "name"), [(90010, "gfx90a"), (90008, "gfx908"), (110000, "gfx1100"), (110501, "gfx1151")])
def test_amd_versions_are_architecture_names(number: int, name: str) -> None:
    assert gfx(number) == name


def test_intel_cards_are_known_by_their_pci_ids(tmp_path: Path) -> None:
    intel(tmp_path, "0xe20b", "0x0bd5", "0x9999")
    cards = XpuPlatform(tmp_path).cards()
    assert [(c.name, c.arch) for c in cards] == [
        ("Intel Arc B580", "xe2"), ("Intel Data Center GPU Max 1550", "xe1hpc"), ("Intel GPU", ""),
    ]  # fmt: skip


KINDS: dict[type[GpuPlatform], tuple[Callable[[Path], None], dict[str, str], str, str]] = {
    CudaPlatform: (lambda root: nvidia(root, "NVIDIA H200", "NVIDIA H200"), {"cuda": "13.0"}, "NVIDIA H200", "CUDA"),
    RocmPlatform: (lambda root: amd(root, (90402, 192)), {"hip": "7.1.0"}, "CDNA3 (gfx942)", "ROCm"),
    XpuPlatform: (lambda root: intel(root, "0xe20b"), {"xpu": "20250302"}, "Arc B580", "XPU"),
}


@pytest.fixture(params=KINDS, ids=lambda k: k.name)
def kind(request: pytest.FixtureRequest) -> type[GpuPlatform]:
    return request.param


def _probe(platform: GpuPlatform) -> Probe:
    """What probe says; `open` must say the same where it is a refusal."""
    said = platform.probe()
    if said.score == 0:
        with pytest.raises(DeviceError) as e:
            platform.open(Place())
        assert said.reason in str(e.value)
    assert "\n" not in said.reason
    return said


def test_no_card_no_driver_no_torch_wrong_torch_old_torch_and_all_well_are_told_apart(
    kind: type[GpuPlatform], tmp_path: Path
) -> None:
    put, built, name, title = KINDS[kind]
    others = {k: v for other, (_, b, _, _) in KINDS.items() for k, v in b.items() if other is not kind}
    nothing = tmp_path / "nowhere"
    assert _probe(kind(tmp_path, nothing)).reason.startswith("no ")
    put(tmp_path)
    said = _probe(kind(tmp_path, nothing)).reason
    assert name in said
    assert f"torch is not installed; pip install torch --index-url {kind.wheels}" in said
    said = _probe(kind(tmp_path, torch_folder(tmp_path, "2.13.0+cpu"))).reason
    assert f"torch 2.13.0+cpu is built for the CPU alone, not for {title}; pip install" in said
    assert f"not for {title}" in _probe(kind(tmp_path, torch_folder(tmp_path, **others))).reason
    assert "torch 2.9.1 is older than 2.11" in _probe(kind(tmp_path, torch_folder(tmp_path, "2.9.1", **built))).reason
    assert _probe(kind(tmp_path, torch_folder(tmp_path, "2.11.0", **built))).score > 0
    well = _probe(kind(tmp_path, torch_folder(tmp_path, **built)))
    assert well.score > 10
    assert name in well.reason
    assert f"{title} {next(iter(built.values()))}" in well.reason


@pytest.mark.parametrize(
    ("platform", "vendor", "words"),
    [(CudaPlatform, "0x10de", "--gpus all"), (RocmPlatform, "0x1002", "/dev/kfd"), (XpuPlatform, "0x8086", "kernel")],
)
def test_a_card_without_its_driver_is_seen_on_the_bus(
    platform: type[GpuPlatform], vendor: str, words: str, tmp_path: Path
) -> None:
    for i, of in enumerate((vendor, "0x1234")):
        write(tmp_path, f"sys/bus/pci/devices/0000:0{i}:00.0/vendor", of + "\n")
        write(tmp_path, f"sys/bus/pci/devices/0000:0{i}:00.0/class", "0x030000\n")
    said = _probe(platform(tmp_path)).reason
    assert "0000:00:00.0" in said
    assert "0000:01" not in said
    assert words in said


def test_cards_too_old_are_refused_unless_one_is_not(tmp_path: Path) -> None:
    folder = torch_folder(tmp_path, cuda="13.0")
    nvidia(tmp_path, "Tesla V100-SXM2-16GB")
    assert "too old" in _probe(CudaPlatform(tmp_path, folder)).reason
    nvidia(tmp_path, "Tesla V100-SXM2-16GB", "NVIDIA H200")
    platform = CudaPlatform(tmp_path, folder, FakeDriver([opened("V100", "sm_70", 16), opened("NVIDIA H200", "sm_90", 141)]))
    assert platform.probe().score > 0
    with pytest.raises(DeviceError, match=r"V100.*sm_70, Volta.*too old"):
        platform.with_options(GpuOptions(device=0)).open(Place())
    assert platform.with_options(GpuOptions(device=1)).open(Place()).info.name == "NVIDIA H200"


@pytest.mark.parametrize("on", [True, False])
def test_tiles_by_rows_are_an_option(tmp_path: Path, on: bool) -> None:
    pytest.importorskip("triton")
    folder = torch_folder(tmp_path, cuda="13.0")
    nvidia(tmp_path, "NVIDIA H200")
    platform = CudaPlatform(tmp_path, folder, FakeDriver([opened("NVIDIA H200", "sm_90", 141)]))
    device = platform.with_options(GpuOptions(row_tiles=on)).open(Place())
    product = next(k for k in device.kernels if (k.op, k.name) == ("linear", "triton"))
    made = {product.run.args[0].product.choose("dense", rows, 4096) for rows in (1, 8192)}  # type: ignore[attr-defined]
    assert (len(made) == 2) == on


@pytest.mark.parametrize("on", [True, False])
def test_scaled_codes_are_an_option(tmp_path: Path, on: bool) -> None:
    pytest.importorskip("triton")
    folder = torch_folder(tmp_path, cuda="13.0")
    nvidia(tmp_path, "NVIDIA H200")
    platform = CudaPlatform(tmp_path, folder, FakeDriver([opened("NVIDIA H200", "sm_90", 141)]))
    device = platform.with_options(GpuOptions(scaled_codes=on)).open(Place())
    spec = {"weight": WeightFormat("int", 4, 64, symmetric=False), "dtype": "bfloat16"}
    claim = [k.name for k in device.kernels if k.op == "linear" and k.batch_invariant and k.supports(spec) is None]
    assert claim == (["triton-int4-scaled", "triton-int4"] if on else ["triton-int4", "triton-int4-scaled"])


@pytest.mark.parametrize("on", [True, False])
def test_dependent_launches_are_an_option(tmp_path: Path, on: bool) -> None:
    """Every launch of a layer has it, whose kernel waits before it reads."""
    pytest.importorskip("triton")
    folder = torch_folder(tmp_path, cuda="13.0")
    nvidia(tmp_path, "NVIDIA H200")
    driver = FakeDriver([opened("NVIDIA H200", "sm_90", 141), opened("NVIDIA A100", "sm_80", 80)])
    platform = CudaPlatform(tmp_path, folder, driver).with_options(GpuOptions(dependent_launch=on))
    kernels = [k for k in platform.open(Place()).kernels if k.name == "triton" and k.op in ("rms_norm", "route", "linear")]
    assert len(kernels) == 3
    assert {k.run.args[0].dependent for k in kernels} == {on}  # type: ignore[attr-defined]
    older = platform.with_options(GpuOptions(device=1, dependent_launch=on))
    if not on:
        older.open(Place())
        return
    with pytest.raises(DeviceError, match=r"additional_config: dependent_launch requires .*sm_90 or later, not sm_80"):
        older.open(Place())


@pytest.mark.parametrize("on", [True, False])
def test_joined_attention_is_an_option(tmp_path: Path, on: bool) -> None:
    pytest.importorskip("triton")
    folder = torch_folder(tmp_path, cuda="13.0")
    nvidia(tmp_path, "NVIDIA H200")
    platform = CudaPlatform(tmp_path, folder, FakeDriver([opened("NVIDIA H200", "sm_90", 141)]))
    device = platform.with_options(GpuOptions(joined_attention=on)).open(Place())
    exact = next(a for a in device.attention if a.name == "triton-paged")
    assert exact._tiles.attention.joined == on  # type: ignore[attr-defined]


@pytest.mark.parametrize("on", [True, False])
def test_fused_rounding_is_an_option(tmp_path: Path, on: bool) -> None:
    pytest.importorskip("triton")
    folder = torch_folder(tmp_path, cuda="13.0")
    nvidia(tmp_path, "NVIDIA H200")
    platform = CudaPlatform(tmp_path, folder, FakeDriver([opened("NVIDIA H200", "sm_90", 141)]))
    device = platform.with_options(GpuOptions(fused_rounding=on)).open(Place())
    sizes = {"in_features": 4096, "out_features": 4096, "dtype": "bfloat16"}
    binder = Binder(device.kernels, batch_invariant=True)
    for format in (WeightFormat("float", 8, act="float8_e4m3fn"), WeightFormat("int", 8, act="int8")):
        facts = {"weight": format, "act": format.act, "group": 0} | sizes
        linear = binder.bind(ops.linear, **facts)
        found = [binder.offer(ops.rms_norm_linear, linear, eps=1e-6, **facts),
                 binder.offer(ops.act_and_mul_linear, linear, gate="silu", **facts)]  # fmt: skip
        assert [f and f.choice.kernel for f in found] == [linear.choice.kernel if on else None] * 2
    dense = {"weight": DENSE, "eps": 1e-6} | sizes
    assert binder.offer(ops.rms_norm_linear, binder.bind(ops.linear, **dense), **dense) is None


def test_a_container_that_hides_the_names_still_has_its_cards(tmp_path: Path) -> None:
    write(tmp_path, "dev/nvidia0")
    write(tmp_path, "dev/nvidiactl")
    platform = CudaPlatform(tmp_path, torch_folder(tmp_path, cuda="13.0"))
    assert len(platform.cards()) == 1
    assert platform.probe().score > 0
    assert platform.describe() is None


def _machine(kind: type[GpuPlatform], root: Path, driver: FakeDriver) -> GpuPlatform:
    put, built, _, _ = KINDS[kind]
    put(root)
    return kind(root, torch_folder(root, **built), driver)


def test_a_driver_that_does_not_answer_a_number_too_high_and_a_full_card_are_refused_in_words(
    kind: type[GpuPlatform], tmp_path: Path
) -> None:
    with pytest.raises(DeviceError, match="torch cannot use it: driver too old"):
        _machine(kind, tmp_path, FakeDriver(broken="driver too old")).open(Place())
    card = opened("card", "sm_90", 80)
    with pytest.raises(DeviceError, match=r"GPU 1 was asked for and this process sees 1 \(numbered from 0\)"):
        _machine(kind, tmp_path, FakeDriver([card])).with_options(GpuOptions(device=1)).open(Place())
    with pytest.raises(DeviceError, match=r"0\.0 of 80\.0 GiB free: too little to start"):
        _machine(kind, tmp_path, FakeDriver([opened("card", "sm_90", 80, 0)])).open(Place())
    with pytest.raises(DeviceError, match="count from 0"):
        _machine(kind, tmp_path, FakeDriver([card])).with_options(GpuOptions(device=-1)).open(Place())
    with pytest.raises(DeviceError, match="takes GpuOptions"):
        _machine(kind, tmp_path, FakeDriver([card])).with_options({"device": 0}).open(Place())


def test_without_triton_one_sentence_says_what_is_slow_and_what_to_install(
    kind: type[GpuPlatform], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    platform = _machine(kind, tmp_path, FakeDriver([opened("card", "sm_90", 80)]))
    for name in [m for m in sys.modules if m.startswith(("triton", "thalweg.backends.triton_kernels."))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "triton", None)  # importing it raises, as if it were not there
    device = platform.open(Place())
    (record,) = caplog.records
    assert "triton is not installed" in record.getMessage()
    assert f"--index-url {kind.wheels}" in record.getMessage()
    assert "\n" not in record.getMessage()
    assert [a.name for a in device.attention][-4:] == ["triton", "torch-gather", "torch-encoder", "torch-gather-blocks"]


@pytest.mark.slow
def test_a_model_that_does_not_fit_is_refused_with_the_sum_and_the_flags_to_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The made-up card claims 1 GiB; graphs, kernels and the driver alone take half of it."""
    platform = _machine(CudaPlatform, tmp_path, FakeDriver([opened("NVIDIA L4", "sm_89", 24)]))
    monkeypatch.setattr(discovery, "load", lambda name: platform)
    with pytest.raises(
        ConfigError, match=r"gpu_memory_utilization: 0\.92 of 1\.00 GiB .*too little\. Free memory.*smaller model"
    ):
        LLM(device="cuda", dtype="bfloat16", load_format="dummy", hf_overrides={"num_hidden_layers": 400})


def test_an_opened_device_says_what_it_is(kind: type[GpuPlatform], tmp_path: Path) -> None:
    device = _machine(kind, tmp_path, FakeDriver([opened("some card", "gfx942", 192)])).open(Place())
    assert (device.info.kind, device.info.name, device.info.memory_bytes) == (kind.name, "some card", 192 * GIB)
    assert device.info.notes["fp8"] == "float8_e4m3fnuz"
    assert device.kernels
    assert device.attention


@pytest.mark.parametrize("arch", ARCHES)
def test_every_known_architecture_has_defaults_or_is_too_old(arch: str) -> None:
    known = arch_of(arch)
    d = defaults(known, 80 * GIB, LLAMA)
    if not known.dtypes:
        assert d.dtype is None
        return
    assert d.dtype == ("float16" if arch in ("sm_75", "gfx1030", "xe1lp") else "bfloat16")
    assert d.pipeline_depth == 2
    assert all(b.uniform and b.tokens == b.seqs for b in d.buckets)
    assert max(b.seqs for b in d.buckets) == d.max_num_seqs
    assert max(b.blocks for b in d.buckets) * 16 >= LLAMA.max_len


@pytest.mark.parametrize(
    ("arch", "fp8"),
    [("sm_80", ""), ("sm_89", "float8_e4m3fn"), ("sm_90", "float8_e4m3fn"), ("gfx90a", ""), ("gfx942", "float8_e4m3fnuz"),
     ("gfx950", "float8_e4m3fn"), ("gfx1201", "float8_e4m3fn"), ("gfx1100", ""), ("xe2", "")],
)  # fmt: skip
def test_eight_bit_floats_are_those_of_the_matrix_units(arch: str, fp8: str) -> None:
    assert arch_of(arch).fp8 == fp8


@pytest.mark.parametrize(
    ("arch", "like"), [("sm_130", "sm_121"), ("sm_88", "sm_87"), ("gfx951", "gfx950"), ("gfx1202", "gfx1201"), ("xe4", "xe3")]
)
def test_a_newer_architecture_is_taken_for_the_newest_known_of_its_line_and_says_so(arch: str, like: str) -> None:
    got = arch_of(arch)
    assert got.name == arch
    assert (got.dtypes, got.fp8) == (arch_of(like).dtypes, arch_of(like).fp8)
    assert like in got.family


@pytest.mark.parametrize("arch", ["gfx1300", "mi500", "sm_20", ""])
def test_an_architecture_of_no_known_line_is_not_guessed(arch: str) -> None:
    assert arch_of(arch).dtypes == ()


@pytest.mark.parametrize(("gib", "seqs", "tokens"), [(141, 512, 8192), (24, 256, 4096), (8, 128, 2048)])
def test_larger_cards_take_more_at_once(gib: int, seqs: int, tokens: int) -> None:
    d = defaults(arch_of("sm_90"), gib * GIB, LLAMA)
    assert (d.max_num_seqs, d.max_num_batched_tokens) == (seqs, tokens)


DEFAULTS = Defaults()


@pytest.mark.parametrize(("seqs", "max_len"), [(512, 131072), (100, 8192), (3, 300), (2000, 4096)])
def test_buckets_are_few_and_follow_what_is_served(kind: type[GpuPlatform], seqs: int, max_len: int) -> None:
    platform = kind()
    every = platform.buckets(DEFAULTS, Limits(8192, seqs, max_len, 16))
    made = [b for b in every if b.uniform]
    sizes = sorted({b.seqs for b in made})
    assert len(made) == len(set(made)) <= 90
    assert sizes[-1] == min(seqs, 1024)
    assert all(b <= a + 8 or b <= a * 4 / 3 + 1 for a, b in itertools.pairwise(sizes))  # at most a third is padding
    assert max(b.blocks for b in made) == max_len // 16 + (max_len % 16 > 0) + 1
    assert {b.tokens == b.seqs and b.uniform for b in made} == {True}


def test_the_sizes_that_were_asked_for_are_captured_and_no_larger_ones(kind: type[GpuPlatform]) -> None:
    for fields, want in (({}, {1, 8, 64}), ({"max_cudagraph_capture_size": 16}, {1, 8, 16})):
        args = EngineArgs(cudagraph_capture_sizes=[8, 1, 64], **fields)
        platform = resolve.configure_platform(args, kind())
        made = platform.buckets(DEFAULTS, Limits(8192, 512, 8192, 16))
        assert {b.seqs for b in made if b.uniform} == want
        assert {b.tokens for b in made if not b.uniform} <= want - {1}
        assert platform.workspace(SIZES) < kind().workspace(SIZES)
    few = resolve.configure_platform(EngineArgs(cudagraph_capture_sizes=[8, 1, 64]), kind())
    assert {b.seqs for b in few.buckets(DEFAULTS, Limits(8192, 20, 8192, 16)) if b.uniform} == {1, 8, 20}


@pytest.mark.parametrize(("drafts", "widths"), [(1, {2}), (4, {2, 4, 5}), (7, {2, 4, 8}), (64, {2, 4, 8, 16, 32, 64, 65})])
def test_steps_that_verify_drafts_have_few_sizes(kind: type[GpuPlatform], drafts: int, widths: set[int]) -> None:
    """Those that the control plane fills proposals up to. Without drafts there are none, nor without graphs."""
    plain = kind().buckets(DEFAULTS, Limits(8192, 512, 8192, 16))
    made = set(kind().buckets(DEFAULTS, Limits(8192, 512, 8192, 16, drafts))) - set(plain)
    assert {b.tokens // b.seqs for b in made} == widths
    assert all(b.uniform and b.tokens <= 256 for b in made)
    assert len(made) <= 120
    eager = kind().with_options(GpuOptions(graphs=False))
    assert set(eager.buckets(DEFAULTS, Limits(8192, 512, 8192, 16, drafts))) <= set(plain)


@pytest.mark.parametrize(("seqs", "max_len"), [(512, 131072), (100, 8192), (3, 300)])
def test_steps_with_prompts_have_few_sizes_and_room_for_every_sequence(
    kind: type[GpuPlatform], seqs: int, max_len: int
) -> None:  # fmt: skip
    limits = Limits(8192, seqs, max_len, 16)
    made = [b for b in kind().buckets(DEFAULTS, limits) if not b.uniform]
    assert 0 < len(made) == len(set(made)) <= 64
    assert max(b.tokens for b in made) == 512
    assert max(b.seqs for b in made) == (seqs + 1 if seqs < 512 else 128)
    assert max(b.blocks for b in made) == -(-max_len // 16) + 1
    assert not [b for b in kind().with_options(GpuOptions(mixed_graph=0)).buckets(DEFAULTS, limits) if not b.uniform]
    assert not [b for b in kind().with_options(GpuOptions(graphs=False)).buckets(DEFAULTS, limits) if not b.uniform]


SIZES = StepSizes(
    tokens=8192, seqs=256, max_len=8192, hidden=4096, inner=14336, heads=32, kv_heads=8, head_dim=128, vocab=128256,
    dtype_bytes=2,
)  # fmt: skip


def test_what_graphs_take_is_planned_for(kind: type[GpuPlatform]) -> None:
    platform = kind()
    without = platform.with_options(GpuOptions(graphs=False)).workspace(SIZES)
    graphs = platform.workspace(SIZES) - without
    sampling = SIZES.seqs * SIZES.vocab * 4 * 4
    assert graphs > sampling + len(platform.buckets(DEFAULTS, Limits(8192, 256, 8192, 16))) * GRAPH_BYTES
    fewer = dataclasses.replace(SIZES, seqs=16)
    assert platform.workspace(fewer) - platform.with_options(GpuOptions(graphs=False)).workspace(fewer) < graphs / 2


def test_what_attention_over_long_tables_takes_is_what_its_kernels_say() -> None:
    attention = pytest.importorskip("thalweg.backends.triton_kernels.attention", exc_type=ImportError)
    from thalweg.backends.triton_kernels.tiles import tiles

    assert platform_module.PARTS_BYTES == attention.PARTS
    assert {tiles(a).attention.split for a in ("sm_80", "sm_90", "gfx942", "gfx1201")} == {platform_module.SPAN}


def test_what_is_prepared_is_one_of_three_words(kind: type[GpuPlatform], tmp_path: Path) -> None:
    machine = _machine(kind, tmp_path, FakeDriver([opened("some card", "gfx942", 192)]))
    assert machine.open(Place()).warms
    assert not machine.with_options(GpuOptions(prepare="none")).open(Place()).warms
    with pytest.raises(DeviceError, match=r"graphs, kernels, none, not 'all'"):
        machine.with_options(GpuOptions(prepare="all")).open(Place())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="prepare"):
        resolve.configure_platform(EngineArgs(additional_config={"prepare": "all"}), machine)


def test_one_process_per_device(kind: type[GpuPlatform]) -> None:
    assert [p.devices for p in kind().topology(Parallel(tensor=4)).places] == [(0,), (1,), (2,), (3,)]


def test_torch_s_version_file_is_read_as_text(tmp_path: Path) -> None:
    assert torch_build(torch_folder(tmp_path, "2.13.0+rocm7.1", hip="7.1.25", rocm="7.1.0")) == TorchBuild(
        "2.13.0+rocm7.1", {"hip": "7.1.25"}
    )
    here = torch_build()
    import torch

    assert here is not None
    assert here.version == torch.__version__
    assert here.built.get("cuda") == torch.version.cuda
