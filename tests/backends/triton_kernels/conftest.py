"""Compiling every launch for every device takes minutes of one core, which the other tests leave idle: it starts with the run,
at the lowest priority, and its test comes last and waits for it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
LAST = "test_every_launch_compiles_for_every_device"
_COMPILING: pytest.StashKey[tuple[subprocess.Popen[bytes], Path]] = pytest.StashKey()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.name == LAST)


def pytest_collection_finish(session: pytest.Session) -> None:
    if session.config.option.collectonly or not any(item.name == LAST for item in session.items):
        return
    log = Path(tempfile.mkdtemp()) / "compile.txt"
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"OMP_NUM_THREADS": "1"}
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "ci/gpu/compile.py"], cwd=ROOT, env=env, stdout=out, stderr=out, start_new_session=True,
            preexec_fn=lambda: os.nice(19),
        )  # fmt: skip
    session.config.stash[_COMPILING] = (process, log)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if made := session.config.stash.get(_COMPILING, None):
        if made[0].poll() is None:
            os.killpg(made[0].pid, 9)
        made[0].wait()
        made[1].unlink(missing_ok=True)
        made[1].parent.rmdir()


@pytest.fixture
def compiling(request: pytest.FixtureRequest) -> tuple[subprocess.Popen[bytes], Path]:
    """The process that was started with this run, and what it prints."""
    return request.config.stash[_COMPILING]
