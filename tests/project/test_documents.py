"""Code in README and docs runs as it is printed. Blocks marked `python no-run` need a server, and are only parsed."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python( no-run)?\n(.*?)^```", re.MULTILINE | re.DOTALL)
FILES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(file: Path) -> list[tuple[bool, str]]:
    """(runs, code) of every Python block."""
    return [(not m[1], m[2]) for m in BLOCK.finditer(file.read_text(encoding="utf-8"))]


def test_every_python_block_parses() -> None:
    found = [(file, code) for file in FILES for _, code in blocks(file)]
    assert any(file.name == "README.md" for file, _ in found)
    for file, code in found:
        ast.parse(code, filename=str(file))


@pytest.mark.slow
@pytest.mark.parametrize("file", [f for f in FILES if any(runs for runs, _ in blocks(f))], ids=lambda f: f.name)
def test_python_blocks_run(file: Path, tmp_path: Path) -> None:
    """One after another in one interpreter, in an empty folder."""
    code = "\n".join(code for runs, code in blocks(file) if runs)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.name)
def test_relative_links_lead_somewhere(file: Path) -> None:
    targets = re.findall(r"\]\((?!https?:|#|mailto:)([^)#]+)", file.read_text(encoding="utf-8"))
    assert [t for t in targets if not (file.parent / t).exists()] == []


def test_commands_the_readme_names_are_targets_of_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = set(re.findall(r"^make ([a-z]+)", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE))
    assert {"serve", "test"} <= named
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in named)
