"""The page's modules under node's own test runner, where there is a node."""

from __future__ import annotations

import shutil
import subprocess
from importlib import resources
from pathlib import Path

import pytest

NODE = shutil.which("node")


@pytest.mark.slow
@pytest.mark.skipif(NODE is None, reason="there is no node")
def test_logic(tmp_path: Path) -> None:
    for file in resources.files("thalweg.server.page").joinpath("files").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "package.json").write_text('{"type": "module"}')
    shutil.copy(Path(__file__).with_name("logic.test.mjs"), tmp_path)
    done = subprocess.run([str(NODE), "--test", str(tmp_path)], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "tests 13\n" in done.stdout, done.stdout  # where it finds none it does not fail
