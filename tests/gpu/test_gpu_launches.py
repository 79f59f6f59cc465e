"""`ci/gpu/launches.py`: what steps launch, told apart into layers and the rest, and which a graph holds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from gpu_scripts import FOLDER, ROOT, script

pytest.importorskip("triton")


def _count_launches(shape: str, out: Path, *more: str) -> dict[str, Any]:
    """What the script found of one shape."""
    command = [
        sys.executable, str(FOLDER / "launches.py"), "--shapes", shape, "--rounds", "1", "--output-json", str(out), *more
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(out.read_text())["shapes"][shape]
    return found


@pytest.mark.slow
def test_launches_of_a_layer_are_counted_for_a_gpu_that_is_not_here(tmp_path: Path) -> None:
    found = _count_launches("tiny", tmp_path / "launches.json")
    for name, most in (("decode 1", 10), ("decode 64", 10), ("mixed 16 + 240", 11), ("prompt 2048", 9)):
        assert 8 <= found[name]["layer"] <= most, found[name]["of_layer"]
        assert found[name]["of_layer"]["triton turn_and_store"] == 1
    assert [name for name, f in found.items() if f["graph"]] == ["decode 1", "decode 64", "mixed 16 + 240"]
    assert all(f["launches"] == (1 if f["graph"] else f["eager_launches"]) for f in found.values())


@pytest.mark.nightly
@pytest.mark.parametrize(("shape", "kind"), [("tiny", "dense"), ("tiny-moe", "experts")])
def test_every_triton_launch_of_a_layer_is_dependent_where_the_option_says_so(shape: str, kind: str, tmp_path: Path) -> None:
    found = _count_launches(shape, tmp_path / "launches.json", "--dependent")["decode 64"]["of_layer"]
    triton = {name: n for name, n in found.items() if name.startswith("triton")}
    assert all(name.endswith("(dependent)") for name in triton), triton
    layer = sum(n for name, n in triton.items() if "product" not in name)  # which serves matrices as small as these
    assert layer == script("predict").LAYER_DEPENDENT[kind] - (kind == "experts")  # 128 pairs are sorted in one launch
    joined = _count_launches(shape, tmp_path / "joined.json", "--joined")["decode 64"]["of_layer"]
    assert sum(joined.values()) == sum(found.values()) - 1
    assert "triton join" not in joined


@pytest.mark.nightly
def test_experts_of_gpt_oss_run_kernels_whose_launches_do_not_grow_with_their_number(tmp_path: Path) -> None:
    """Biases and clamped gates are added inside: the reference body launches 570 operations a layer."""
    found = _count_launches("gpt-oss-20b", tmp_path / "launches.json")
    for name, f in found.items():
        assert f["layer"] <= (13 if name == "decode 1" else 15), (name, f["of_layer"])
        assert "torch to" not in f["of_layer"], name  # of the router's logits
        assert [f["of_layer"].get(f"triton {k}") for k in ("up", "down", "together")] == [1, 1, 1], name
        assert not any(k in f["of_layer"] for k in ("torch mul", "torch clamp", "torch index")), name
        assert f["of_layer"].get("torch linear", 0) <= 2, name  # of q, k and v, and of attention's output


def test_the_shape_of_gpt_oss_has_the_values_of_the_published_model() -> None:
    from thalweg.models import registry, sizes

    config = script("launches").SHAPES["gpt-oss-20b"]
    assert sizes.stored_values(registry.family(config)(config)) == 20_914_757_184


def test_casts_and_copies_count_as_launches_and_views_do_not() -> None:
    """Torch declares `to` and `contiguous` as views, as they may give their argument back."""
    with torch.inference_mode(), script("launches").Operations() as operations:
        x = torch.zeros(4, 6)
        operations.seen.clear()
        x.to(torch.float32), x.contiguous(), x.view(6, 4), x.t(), x[1:].flatten()
        assert not operations.seen
        x.to(torch.int32), x.t().contiguous()
    assert operations.seen == {"torch to": 1, "torch contiguous": 1}


def test_a_dependent_launch_waits_before_its_first_access_to_memory() -> None:
    compiled, meta = script("compile"), script("launch_calls").meta
    norm = next(k for k in compiled.library("sm_90", dependent_launch=True).kernels if k.op == "rms_norm")
    (launch,) = compiled.record(lambda: norm.run(meta(3, 256), meta(256), eps=1e-6), "norm")
    assert launch.options["launch_pdl"]
    assert compiled.compile_one(launch, "sm_90").problems == []
    product = next(
        k for k in compiled.library("sm_90", dependent_launch=True).kernels if (k.op, k.name) == ("linear", "triton")
    )
    (fetches,) = compiled.record(lambda: product.run(meta(3, 256), meta(128, 256)), "product")
    assert compiled.compile_one(fetches, "sm_90").problems == []
    idle = compiled.Launch("idle", fetches.kernel, fetches.arguments | {"DEPENDENT": False}, fetches.options)
    assert "a dependent product that prefetches nothing" in compiled.compile_one(idle, "sm_90").problems
    never = compiled.Launch("never", launch.kernel, launch.arguments | {"DEPENDENT": False}, launch.options)
    assert compiled.compile_one(never, "sm_90").problems == ["a dependent launch without griddepcontrol.wait"]
    late = "ld.param.b64 %rd1;\nld.global.v4.b32 {%r1}, [%rd1];\ngriddepcontrol.wait;\n"
    assert compiled.find_early_access(late) == "accesses memory before griddepcontrol.wait: ld.global"
    assert compiled.find_early_access("griddepcontrol.wait;\ncp.async.cg.shared.global [%r1], [%rd1];\n") is None
