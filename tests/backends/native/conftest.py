"""The compiled library, built first where an install has not done it; tests run at every instruction set there is here."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import tempfile
import zlib
from pathlib import Path
from typing import Any

import pytest

from thalweg.backends.cpu.native import LIBRARY, NativeLibrary, NoLibraryError, levels, open_library

ROOT = Path(__file__).resolve().parents[3]


def builder() -> Any:
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def hatch_build() -> Any:
    """The build script, as a module of its own for each test."""
    return builder()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "library" in metafunc.fixturenames:
        try:
            there = _levels()
        except NoLibraryError as e:
            metafunc.parametrize("library", [pytest.param(None, marks=pytest.mark.skip(reason=str(e)))], indirect=True)
        else:
            checked = (there[0], there[-1])  # `make check` runs the best here and the portable one, `make test` all
            each = [pytest.param(x, marks=() if x in checked else pytest.mark.slow) for x in there]
            metafunc.parametrize("library", each, indirect=True, scope="module")


def _levels() -> list[str]:
    if "THALWEG_DRIVER" in os.environ:  # ci/emulate: the kernels are in another process
        return levels()
    build_once(builder())
    return levels()


def lock_file(library: Path) -> Path:
    """Locked by the process that compiles this library."""
    return Path(tempfile.gettempdir()) / f"thalweg-tests-build-{zlib.crc32(str(library.resolve()).encode()):08x}.lock"


def build_once(build: Any, library: Path = LIBRARY) -> None:
    """Compiles the library if a source is newer. Processes that collect these tests at the same time wait for the first one.
    build: the build script. NoLibraryError if it cannot compile."""
    with lock_file(library).open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not build.has_sets(None, library):
            try:
                build.build(library, sets=build.choose_sets("runnable"))
            except build.CannotBuildError as e:
                raise NoLibraryError(str(e)) from None


@pytest.fixture(scope="module")
def library(request: pytest.FixtureRequest) -> NativeLibrary:
    return open_library(2, request.param)
