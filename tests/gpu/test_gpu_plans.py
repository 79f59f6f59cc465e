"""Which parts the plans of `ci/gpu/run` have, in which order, at which sizes, and what each must find to be complete."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from gpu_scripts import ROOT, script

from thalweg.backends.torch_gpu import linear

FIRST = [
    "smoke", "rows", "checks", "measure 8b", "kit exact attention", "kit exact linear", "attention tiles",
    "measure 8b int4", "measure 30b-a3b", "measure 8b fp8",
]  # fmt: skip
SECOND = [
    "measure 8b dependent", "measure 8b int4 dependent", "measure 30b-a3b dependent", "measure 8b joined",
    "measure 8b fp8 unfused",
    "measure 8b int4 scaled", "measure 8b variant", "products", "ncu", "measure gpt-oss", "sanitizer", "starts 1b",
]  # fmt: skip
LONG = [
    "smoke", "rows", "checks", "kit exact attention", "kit exact linear", "kit no split k", "measure 1b", "measure 8b",
    "starts 1b", "tiles", "load", "kit rest 1", "kit rest 2", "measure 1b variant", "measure 8b variant", "starts 8b", "sweep",
    "sanitizer",
]  # fmt: skip


def test_twelve_minutes_are_two_commands_in_order_of_value(tmp_path: Path) -> None:
    made = script("plans").make_parts("quick", "cuda", tmp_path)
    assert [(p.name, p.command) for p in made.values()] == [*((n, 1) for n in FIRST), *((n, 2) for n in SECOND)]
    assert script("plans").BUDGETS["quick"] == (560, 240)
    judges = {"smoke", "rows", "checks", "kit exact attention", "kit exact linear"}
    assert {p.name for p in made.values() if p.judges} == judges
    assert {p.name for p in made.values() if p.lead} == {
        "attention tiles",
        "measure 8b dependent",
        "measure 8b int4 dependent",
        "measure 30b-a3b dependent",
        "measure 8b joined",
        "measure 8b fp8 unfused",
        "products",
        "ncu",
        "sanitizer",
    }
    for command, budget in ((1, 560), (2, 240)):  # every part that is worth starting has room
        assert sum(p.least for p in made.values() if p.command == command) <= budget - script("machine").RESERVE


def test_the_quick_plan_has_the_sizes_of_its_page(tmp_path: Path) -> None:
    made = script("plans").make_parts("quick", "cuda", tmp_path)
    assert {"--requests=6", "--tokens=32"} <= set(made["checks"].words)
    assert {f"llama-8b: step {n}" for n in (1, 8, 64, 256)} <= set(made["measure 8b"].wanted)
    assert {f"llama-8b: prompt {n}" for n in (512, 2048, 8192)} <= set(made["measure 8b"].wanted)
    assert {"llama-8b: idle", "llama-8b: crowd"} <= set(made["measure 8b"].wanted)
    assert "llama-8b: requests 64 x 1024 + 512" in made["measure 8b"].wanted
    moe = [f"qwen3-30b-a3b 12/48 layers: {f}" for f in ("step 1", "step 64", "prompt 2048")]
    assert set(moe) <= set(made["measure 30b-a3b"].wanted)
    assert {"--shapes=qwen3-30b-a3b", "--layers=12"} <= set(made["measure 30b-a3b"].words)
    assert {"--quantization=fp8"} <= set(made["measure 8b fp8"].words)
    assert {"--quantization=int4", "--scaled"} <= set(made["measure 8b int4 scaled"].words)
    plain, scaled = (made[f"measure 8b int4{more}"].wanted for more in ("", " scaled"))
    assert scaled == tuple(name.replace("int4:", "int4 scaled:") for name in plain)  # a pair of figures each
    fused, unfused = (made[f"measure 8b fp8{more}"].wanted for more in ("", " unfused"))
    assert unfused == tuple(name.replace("fp8:", "fp8 unfused:") for name in fused)
    assert {"--quantization=fp8", "--unfused"} <= set(made["measure 8b fp8 unfused"].words)
    moe = "qwen3-30b-a3b 12/48 layers"
    pairs = [("8b", "llama-8b"), ("30b-a3b", moe), ("8b int4", "llama-8b int4")]
    for (model, label), way in (*((pair, "dependent") for pair in pairs), (pairs[0], "joined")):
        pair = {name.replace(f"{label} {way}:", f"{label}:") for name in made[f"measure {model} {way}"].wanted}
        assert pair <= set(made[f"measure {model}"].wanted), model
        assert f"--{way}" in made[f"measure {model} {way}"].words
    assert {f"llama-8b fp8: step {n}" for n in (1, 64, 256)} <= set(made["measure 8b fp8"].wanted)
    assert {"gpt-oss-20b 4/24 layers: step 64"} <= set(made["measure gpt-oss"].wanted)
    assert "--tools=memcheck" in made["sanitizer"].words
    assert set(made["starts 1b"].wanted) == {"llama-1b: start cold", "llama-1b: start warm"}


def test_a_gpu_gets_every_part_at_full_size_and_a_processor_small_ones(tmp_path: Path) -> None:
    parts, plans = script("parts"), script("plans")
    full, hosted = (plans.make_parts("long", p, tmp_path) for p in ("cuda", parts.HOSTED))
    assert [p.name for p in full.values() if p.default] == LONG
    only_cuda = {"kit no split k", "kit flash-attn-4", "measure 8b flash4"}
    assert [name for name in full if name not in only_cuda] == list(hosted)
    shows = full["kit no split k"]
    assert '--platform-options={"unshown_products": true}' in shows.words
    assert linear.WORKSPACE.items() <= shows.env.items()
    flash = full["kit flash-attn-4"]
    assert '--platform-options={"flash_attn_4": true, "unshown_products": true}' in flash.words
    assert "test_attention and flash-attn-4" in flash.words
    assert {"--variant", "--flash4"} <= set(full["measure 8b flash4"].words)
    on_request = {p.name for p in full.values() if not p.default}
    assert {"tests", "kernels", "support", "bench host", "kit flash-attn-4", "measure 8b flash4"} <= on_request
    assert "--shapes=llama-8b" in full["measure 8b"].words
    assert {"--shapes=tiny", "--quick"} <= set(hosted["measure 8b"].words)
    assert ("--variant" in full["measure 1b variant"].words) > ("--variant" in full["measure 1b"].words)
    assert parts.accelerated("cuda")
    assert not parts.accelerated(parts.HOSTED)
    assert all(p.env.get("OMP_NUM_THREADS") == "1" for p in hosted.values())
    assert "rows" not in plans.make_parts("quick", "tpu", tmp_path)


@pytest.mark.parametrize("plan", ["quick", "long"])
def test_every_script_of_a_plan_exists_and_understands_its_options(plan: str, tmp_path: Path) -> None:
    made = script("plans").make_parts(plan, "cuda", tmp_path)
    scripts = {w for p in made.values() for w in p.words if w.startswith(str(ROOT)) and not w.endswith("rows.py")}
    assert scripts
    assert all(Path(word).exists() for word in scripts)
    measure = script("measure")
    for part in (p for p in made.values() if any(w.endswith("measure.py") for w in p.words)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sys.argv", part.words[1:])
            args = measure._arguments()
        case = measure.read_case(args, args.shapes[0])
        assert {case.named(f) for f in args.figures} == set(part.wanted)


@pytest.mark.slow
def test_a_shape_has_one_engine_from_which_its_figures_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what an earlier report has is not measured again: with all of it there, no engine is opened."""
    measure, opened = script("measure"), []

    class Shape:
        def __init__(self, *args: Any) -> None: ...

        def describe(self, seconds: float) -> dict[str, Any]:
            return {"seconds": 1.0, "kernel_plan": []}

        def measure(self, name: str) -> dict[str, Any]:
            assert "tiny: open" in json.loads(out.read_text())["figures"]  # what is known is written at once
            return {"seconds": float(name.split()[1])}

    class Engine:
        def shutdown(self) -> None:
            opened.append("closed")

    monkeypatch.setattr(measure, "OpenShape", Shape)
    monkeypatch.setattr(measure, "open_model", lambda *_: opened.append("open") or Engine())
    out, have = tmp_path / "out.json", tmp_path / "have.json"

    def run(*words: str) -> dict[str, Any]:
        words = ("--device=cpu", "--shapes=tiny", "--figures=open,step 1,step 8", f"--output-json={out}", *words)
        monkeypatch.setattr("sys.argv", ["measure.py", *words])
        assert measure.main() == 0
        return json.loads(out.read_text())["figures"]  # type: ignore[no-any-return]

    assert run() == {"tiny: open": {"seconds": 1.0, "kernel_plan": []}, "tiny: step 1": {"seconds": 1.0},
                     "tiny: step 8": {"seconds": 8.0}}  # fmt: skip
    assert opened == ["open", "closed"]
    have.write_text('{"figures": {"tiny: open": {}, "tiny: step 1": {"seconds": 5.0}, "tiny: step 8": {"error": "no"}}}')
    assert run(f"--have={have}")["tiny: step 1"] == {"seconds": 5.0}
    assert opened == ["open", "closed"] * 2
    have.write_text('{"figures": {"tiny: open": {}, "tiny: step 1": {"seconds": 5.0}, "tiny: step 8": {"seconds": 6.0}}}')
    assert run(f"--have={have}")["tiny: step 8"] == {"seconds": 6.0}
    assert opened == ["open", "closed"] * 2


def test_the_kit_says_how_far_its_kernels_were_taken_and_is_shared_by_processes(tmp_path: Path) -> None:
    parts, plans = script("parts"), script("plans")
    for platform, level, number in (("cuda", "executed", 6), (parts.HOSTED, "hosted", 4)):
        kit = [p for p in plans.make_parts("long", platform, tmp_path, processes=5).values() if p.name.startswith("kit ")]
        assert len({p.evidence for p in kit}) == len(kit) == number
        for p in kit:
            assert f"--evidence={p.evidence}" in p.words
            assert f"--evidence-level={level}" in p.words
            assert p.words[p.words.index("-n") + 1] == "5"
            assert {"--dist=worksteal", "--maxfail=30", "timeout=120"} <= set(p.words)
    assert "-n" not in plans.make_parts("long", "tpu", tmp_path, processes=5)["kit rest 1"].words


@pytest.mark.nightly
def test_the_parts_of_the_kit_are_all_of_it_and_no_test_twice(tmp_path: Path) -> None:
    parts, seen = script("parts"), list[str]()
    for p in script("plans").make_parts("long", parts.HOSTED, tmp_path).values():
        if p.name.startswith("kit "):
            whole = [w for w in p.words[: p.words.index("--maxfail=30")] if not w.startswith("--part")]
            share = next(w for w in p.words if w.startswith("--part=")).removeprefix("--part=").split("/")
            part = [] if int(share[1]) == parts.HOSTED_SHARE else [f"--part={share[0]}/2"]
            seen += _collected([*whole, *part])
    everything = _collected(parts.kit_command(parts.HOSTED))
    assert len(seen) == len(set(seen))
    assert set(seen) == set(everything)
    assert any("variant" in name for name in seen)


def _collected(command: list[str]) -> list[str]:
    done = subprocess.run(
        [*command, "--collect-only", "-v"], cwd=ROOT, capture_output=True, text=True
    )  # -q twice names no tests
    assert done.returncode == 0, done.stdout + done.stderr
    names = [line for line in done.stdout.splitlines() if "::" in line]
    assert names
    return names


def test_a_label_says_what_a_figure_is_of_and_is_read_back() -> None:
    shapes = script("shapes")
    cases = {
        "llama-8b": shapes.Case("llama-8b"), "qwen3-30b-a3b 12/48 layers": shapes.Case("qwen3-30b-a3b", 12),
        "llama-8b fp8 variant": shapes.Case("llama-8b", 0, "fp8", True),
        "gpt-oss-20b 4/24 layers variant": shapes.Case("gpt-oss-20b", 4, variant=True),
    }  # fmt: skip
    for label, case in cases.items():
        assert case.label == label
        assert shapes.parse(label) == case
    assert [shapes.parse(words) for words in ("llama-9b", "llama-8b int3", "llama-8b 4/31 layers")] == [None] * 3
    assert cases["qwen3-30b-a3b 12/48 layers"].config()["num_hidden_layers"] == 12
    with pytest.raises(ValueError, match="has 24 layers, of which 25 cannot run"):
        shapes.Case("gpt-oss-20b", 25).config()


def test_the_shapes_are_those_of_the_published_models() -> None:
    from thalweg.models import registry, sizes

    shapes = script("shapes")
    for name, billions in (("llama-1b", 1.236), ("llama-8b", 8.03), ("qwen3-30b-a3b", 30.53), ("gpt-oss-20b", 20.91)):
        config = shapes.SHAPES[name]
        assert sizes.stored_values(registry.family(config)(config)) / 1e9 == pytest.approx(billions, rel=2e-3), name


def test_kernels_of_flash_attention_4_are_compiled_for_every_kit_case_it_supports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from thalweg.backends.cuda import flash4_compile
    from thalweg.hal.platform import CompiledKernel

    made: list[str] = []

    def compile_object(arch: str, spec: Any, path: Path) -> CompiledKernel:
        made.append(path.name)
        if "softcap" in path.name:
            raise ValueError("too many registers\nand more")
        return CompiledKernel(1.0, False)

    monkeypatch.setattr(flash4_compile, "compile_object", compile_object)
    monkeypatch.setattr("sys.argv", ["flash4.py", "--arch", "sm_90", f"--cache-dir={tmp_path}"])
    assert script("flash4").main() == 1
    kinds = ("d32-g1", "d64-g4", "d32-g2-window", "d32-g2-softcap5", "d128-g4")
    assert made == [f"sm_90-bfloat16-{kind}.so" for kind in kinds]
    said = capsys.readouterr().out
    assert "sinks: not supported: has no sinks" in said
    assert "latent: not supported: runs kinds full and window, not latent" in said
    assert "flash-attn-4 sm_90-bfloat16-d32-g2-softcap5: ValueError: too many registers\n" in said
