"""A guest (a family, a format, a kind of KV group, a part of a step, a drafter) is one file and one line of a registry."""

from __future__ import annotations

import shutil
from pathlib import Path

import guests
import pytest

ROOT = Path(__file__).parents[2]


def counted(root: Path) -> dict[str, guests.Guest]:
    return {f"{g.kind.name} {g.module.rpartition('.')[2]}": g for g in guests.guests(root)}


@pytest.mark.slow  # `make check` runs the command
def test_no_guest_is_known_beside_its_registry() -> None:
    found = counted(ROOT)
    assert {g.kind.name for g in found.values()} == {kind.name for kind in guests.KINDS}
    assert {name: g.elsewhere for name, g in found.items() if len(g.elsewhere) > guests.MOST} == {}


@pytest.mark.slow
def test_a_guest_that_others_know_is_counted(tmp_path: Path) -> None:
    added = {
        "thalweg/engine/worker/runner.py": "from thalweg.models.families import gemma3",
        "thalweg/models/decoder.py": "ASKED = 'Glm4ForCausalLM'",
        "thalweg/checkpoint/config.py": "import thalweg.quantization.formats.fp8",
    }
    for kind in guests.KINDS:
        shutil.copytree(ROOT / kind.folder, tmp_path / kind.folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in {kind.registry for kind in guests.KINDS} | set(added):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
    before = counted(tmp_path)
    for file, line in added.items():
        with (tmp_path / file).open("a") as f:
            f.write(f"\n{line}\n")
    after = counted(tmp_path)
    more = {name: set(after[name].elsewhere) - set(before[name].elsewhere) for name in before}
    assert {name: files for name, files in more.items() if files} == {
        "family gemma3": {"thalweg/engine/worker/runner.py"},
        "family glm4": {"thalweg/models/decoder.py"},
        "format fp8": {"thalweg/checkpoint/config.py"},
    }
