"""`ci/gpu/launches.py`: what steps launch, told apart into layers and the rest, and which a graph holds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from gpu_scripts import FOLDER, ROOT

pytest.importorskip("triton")


@pytest.mark.slow
def test_launches_of_a_layer_are_counted_for_a_gpu_that_is_not_here(tmp_path: Path) -> None:
    out = tmp_path / "launches.json"
    command = [sys.executable, str(FOLDER / "launches.py"), "--shapes", "tiny", "--rounds", "1", "--output-json", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(out.read_text())["shapes"]["tiny"]
    for name, most in (("decode 1", 10), ("decode 64", 10), ("mixed 16 + 240", 11), ("prompt 2048", 9)):
        assert 8 <= found[name]["layer"] <= most, found[name]["of_layer"]
        assert found[name]["of_layer"]["triton turn_and_store"] == 1
    assert [name for name, f in found.items() if f["graph"]] == ["decode 1", "decode 64", "mixed 16 + 240"]
    assert all(f["launches"] == (1 if f["graph"] else f["eager_launches"]) for f in found.values())
