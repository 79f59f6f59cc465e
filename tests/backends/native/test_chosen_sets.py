"""Which instruction sets an install compiles: the best of the processor, or what THALWEG_SETS names."""

from __future__ import annotations

import fcntl
import importlib.util
from pathlib import Path
from typing import Any

import pytest

SERVER = "fpu avx2 fma f16c avx512f avx512bw avx512vl avx512dq avx512_vnni avx512_bf16 amx_tile amx_bf16 amx_int8"
DESKTOP = "fpu avx2 fma f16c avx_vnni"


@pytest.fixture
def build(hatch_build: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """hatch_build on a processor whose flags are `build.flags`."""
    module = hatch_build
    find = module.find_runnable

    def find_there() -> Any:
        file = tmp_path / "cpuinfo"
        file.write_text(f"processor\t: 0\nflags\t\t: {module.flags}\n")
        return find(file)

    monkeypatch.setattr(module.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(module, "find_runnable", find_there)
    return module


@pytest.mark.parametrize(
    ("flags", "best", "runnable"),
    [
        (SERVER, ("avx512bf16",), {"avx2", "avx512", "avx512vnni", "avx512bf16", "amx"}),
        (DESKTOP, ("avxvnni",), {"avx2", "avxvnni"}),
        ("fpu sse2", (), set()),
    ],
)
def test_an_install_compiles_the_set_that_its_processor_would_run(
    build: Any, flags: str, best: tuple[str, ...], runnable: set[str]
) -> None:
    build.flags = flags
    assert build.choose_sets("") == best
    assert set(build.choose_sets("runnable")) == runnable


def test_wheels_hold_every_set_and_a_wrong_name_is_refused(build: Any) -> None:
    build.flags = DESKTOP
    assert build.choose_sets("all") is None
    assert build.choose_sets("avx2, avx512") == ("avx2", "avx512")
    with pytest.raises(ValueError, match="'mmx' is not one of best, runnable, all"):
        build.choose_sets("avx2,mmx")


def test_a_system_that_names_no_flags_compiles_every_set(hatch_build: Any, tmp_path: Path) -> None:
    assert hatch_build.find_runnable(tmp_path / "missing") is None
    hatch_build.find_runnable = lambda: None
    assert hatch_build.choose_sets("") is None


def test_the_processor_itself_chooses_the_same_best_set(hatch_build: Any) -> None:
    """api.cpp asks the processor, and hatch_build reads what Linux lists: they agree on this machine."""
    from thalweg.backends.cpu.native import LIBRARY, levels

    build = hatch_build
    if build.find_runnable() is None or not LIBRARY.exists():
        pytest.skip("no /proc/cpuinfo, or no library")
    assert build.has_sets(build.choose_sets("best"))
    if best := build.choose_sets("best"):
        assert levels()[0] == best[0]


def test_a_library_of_another_interface_counts_as_missing(hatch_build: Any, tmp_path: Path) -> None:
    """Its sets are there, and the package would refuse it."""
    if not hatch_build.has_sets(("portable",)):
        pytest.skip("nothing is compiled here")
    (tmp_path / "api.cpp").write_text("constexpr int ABI = 1;\n")
    hatch_build.SOURCES = tmp_path
    assert not hatch_build.has_sets(("portable",))


def test_processes_that_collect_at_once_compile_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each worker of pytest-xdist finds the same old library: the others wait for the first, and then compile nothing."""
    spec = importlib.util.spec_from_file_location("native_conftest", Path(__file__).with_name("conftest.py"))
    assert spec is not None
    assert spec.loader is not None
    conftest = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(conftest)
    monkeypatch.setattr(conftest.tempfile, "tempdir", str(tmp_path))
    library, calls = tmp_path / "lib.so", list[str]()

    class Script:
        CannotBuildError = OSError

        def has_sets(self, names: tuple[str, ...] | None, file: Path) -> bool:
            return file.exists()

        def choose_sets(self, word: str) -> tuple[str, ...]:
            return (word,)

        def build(self, target: Path, sets: tuple[str, ...]) -> None:
            calls.extend(sets)
            with conftest.lock_file(library).open("a") as other, pytest.raises(BlockingIOError):
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            target.touch()

    conftest.build_once(Script(), library)
    conftest.build_once(Script(), library)
    assert calls == ["runnable"]
