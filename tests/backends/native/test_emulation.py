"""The parts of `ci/emulate`, which CI does not run: they fit the library, and every instruction set is complete."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
from pathlib import Path

import pytest

from thalweg.backends.cpu import native

ROOT = Path(__file__).resolve().parents[3]
SOURCES = ROOT / "thalweg/backends/cpu/native/src"


def test_the_bridge_passes_every_functions_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "ci/emulated"))
    import bridge

    for name, (result, kinds) in native._SIGNATURES.items():
        floats = sum(kind is ctypes.c_float for kind in kinds)
        assert floats <= bridge.FLOATS, name
        assert len(kinds) - floats <= bridge.INTEGERS, name
        assert result is not ctypes.c_float, name
    assert re.findall(r"X\((\w+)\)", bridge.FUNCTIONS) == list(native._SIGNATURES)


def test_every_instruction_set_is_compiled_declared_and_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    import hatch_build

    declared, chosen = (SOURCES / "core.h").read_text(), (SOURCES / "api.cpp").read_text()
    for sets in hatch_build.SETS.values():
        for name in sets:
            assert f'THALWEG_TABLE("{name}")' in (SOURCES / f"kernels_{name}.cpp").read_text()
            assert f"{name}_kernels" in declared
            assert f"HAS_{name.upper()}" in chosen
            assert f"&{name}_kernels" in chosen


@pytest.mark.skipif(sys.platform != "linux", reason="a script for Linux")
def test_the_script_parses() -> None:
    subprocess.run(["bash", "-n", ROOT / "ci/emulate"], check=True)


@pytest.mark.parametrize(("header", "name"), [("bfloat16", r"_mm512_\w*(?:pbh|dpbf16)\w*"), ("avxvnni", r"_mm256_\w+_avx_\w+")])
def test_every_instruction_of_a_set_that_is_emulated_has_its_emulation(header: str, name: str) -> None:
    """One that has none ends the process on a processor that lacks it."""
    assert _named(name, *SOURCES.iterdir()) == _emulated(header)


def test_all_of_avx512_has_its_emulation() -> None:
    """On processors with AVX2 alone the other emulations are made of it too, and nothing that nobody uses is kept."""
    others = [ROOT / f"ci/emulated/{name}.h" for name in ("bfloat16", "amx")]
    assert _named(r"_mm512_\w+", *SOURCES.iterdir(), *others) - _emulated("bfloat16") == _emulated("avx512")
    assert not _named(r"_mm(?:256)?_maskz?_\w+", *SOURCES.iterdir()), "narrower ones that AVX2 lacks"


def _named(what: str, *files: Path) -> set[str]:
    return {found for file in files for found in re.findall(what, file.read_text())}


def _emulated(header: str) -> set[str]:
    return _named(r"(?<=#define )_mm\d+_\w+", ROOT / f"ci/emulated/{header}.h")
