"""Compiles the CPU kernels, as part of every install (`pip install .`, also with -e) or by hand: `python hatch_build.py`.

One translation unit per instruction set, chosen among at run time. Each takes most of a minute of processor time, so an
install compiles the best set of this processor and the portable one. Without a C++ compiler, or on an unsupported system,
the package is pure Python and says at run time that there are no compiled kernels.
    CXX               the compiler (default: c++, g++ or clang++)
    THALWEG_NATIVE    "0": do not compile; "1": failing to compile fails the install; else it is only said
    THALWEG_SETS      best (default), runnable (all that this processor has), all (for wheels and images that travel), or
                      names with commas between
    THALWEG_PLATFORM  the platform that CXX compiles for, as a wheel's name has it (manylinux_2_28_aarch64). `ci/wheels` sets it
By hand: `python hatch_build.py [SETS] [--if-missing]`. The flag compiles nothing if the library has these sets.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SOURCES = HERE / "thalweg/backends/cpu/native/src"
LIBRARY = HERE / "thalweg/backends/cpu/native/libthalweg_cpu.so"
FLAGS = [
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-pthread",
    "-Wall",
    "-Wno-psabi",
    "-Wno-maybe-uninitialized",
    "-Wno-unknown-warning-option",  # clang knows only some of these
]
X86 = {
    "avx2": ["-mavx2", "-mfma", "-mf16c"],
    "avx512": ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx2", "-mfma", "-mprefer-vector-width=512"],
}
X86["avxvnni"] = [*X86["avx2"], "-mavxvnni"]
X86["avx512vnni"] = [*X86["avx512"], "-mavx512vnni"]
X86["avx512bf16"] = [*X86["avx512vnni"], "-mavx512bf16"]
X86["amx"] = [*X86["avx512bf16"], "-mamx-tile", "-mamx-bf16", "-mamx-int8"]
ARM: dict[str, list[str]] = {
    "neon": [],
    "neondot": ["-march=armv8.2-a+dotprod"],
    "neonbf16": ["-march=armv8.2-a+dotprod+bf16+i8mm"],
}
SETS = {"x86_64": X86, "AMD64": X86, "aarch64": ARM, "arm64": ARM}
"""Machine -> instruction set -> flags of its file, beyond what every processor of the family has. Every machine compiles the
portable file."""
NEEDS = {
    "avx2": {"avx2", "fma", "f16c"},
    "avxvnni": {"avx2", "fma", "f16c", "avx_vnni"},
    "avx512": {"avx512f", "avx512bw", "avx512vl", "avx512dq"},
    "avx512vnni": {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni"},
    "avx512bf16": {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni", "avx512_bf16"},
    "amx": {"avx512_bf16", "amx_tile", "amx_bf16", "amx_int8"},
    "neon": {"asimd"},
    "neondot": {"asimddp"},
    "neonbf16": {"asimddp", "bf16", "i8mm"},
}
"""Instruction set -> flags that Linux lists of a processor that has it."""
BEST = ("avx512bf16", "avx512vnni", "avx512", "avxvnni", "avx2", "neonbf16", "neondot", "neon")
"""The order in which a process chooses among the sets of its processor (`levels` in api.cpp)."""


class CannotBuildError(Exception):
    """No compiler, or it failed: why, in a sentence."""


def compiler() -> str:
    for name in (os.environ.get("CXX", ""), "c++", "g++", "clang++"):
        if name and shutil.which(name):
            return name
    raise CannotBuildError("no C++ compiler was found (c++, g++ or clang++; CXX names another)")


def find_runnable(cpuinfo: Path = Path("/proc/cpuinfo")) -> list[str] | None:
    """Sets that this machine's processor has. None: the system does not say."""
    try:
        text = cpuinfo.read_text()
    except OSError:
        return None
    flags = set()
    for line in text.splitlines():
        key, _, words = line.partition(":")
        if key.strip() in ("flags", "Features"):
            flags = set(words.split())
            break
    return [name for name in SETS.get(platform.machine(), {}) if flags >= NEEDS[name]] if flags else None


def choose_sets(word: str) -> tuple[str, ...] | None:
    """The sets that a value of THALWEG_SETS names, None for all. ValueError: it names one that does not exist."""
    if word == "all":
        return None
    if word in ("", "best", "runnable"):
        runnable = find_runnable()
        if runnable is None:
            return None
        best = [name for name in BEST if name in runnable]
        return tuple(runnable if word == "runnable" else best[:1])
    names = tuple(name.strip() for name in word.split(","))
    if odd := [name for name in names if name not in NEEDS and name != "portable"]:
        raise ValueError(f"THALWEG_SETS: {odd[0]!r} is not one of best, runnable, all, {', '.join(NEEDS)}")
    return names


def has_sets(names: tuple[str, ...] | None, library: Path = LIBRARY) -> bool:
    """Has the compiled library this version's interface and these sets, as far as this processor can run them? None, all sets:
    is it newer than its sources?"""
    if not library.exists():
        return False
    if names is None:
        return library.stat().st_mtime >= max(source.stat().st_mtime for source in SOURCES.iterdir())
    found = ctypes.CDLL(str(library))
    if f"ABI = {found.thalweg_abi()};" not in (SOURCES / "api.cpp").read_text():
        return False
    found.thalweg_levels.restype = ctypes.c_char_p
    return set(found.thalweg_levels().decode().split(",")) >= set(names)


def build(
    target: Path = LIBRARY,
    extra: tuple[str, ...] = (),
    sets: tuple[str, ...] | None = None,
    machine: str = "",
    main: Path | None = None,
) -> list[str]:
    """Compile to `target`; the instruction sets it holds. extra: more flags (sanitizers, warnings). sets: no others, besides
    the portable one (for tests that compile often). machine: that the compiler compiles for, if it is not this one. main: a
    file to be linked with the kernels into a program, in place of a library."""
    if sys.platform not in ("linux", "darwin"):
        raise CannotBuildError(f"the compiled kernels are written for Linux and macOS, not {sys.platform}")
    cxx = compiler()
    family = SETS.get(machine or platform.machine(), {})
    flags_of = {name: flags for name, flags in family.items() if sets is None or name in sets}
    with tempfile.TemporaryDirectory() as scratch:
        known = [name for name, flags in flags_of.items() if _accepts(cxx, flags, Path(scratch))]
        jobs = {f"kernels_{name}": flags_of[name] for name in known} | {
            n: [] for n in ("kernels_portable", "arena", "digest", "experts", "lora", "pack", "pool", "ranks", "sparse")
        }
        jobs["api"] = [f"-DHAS_{name.upper()}" for name in known]
        sources = {name: SOURCES / f"{name}.cpp" for name in jobs}
        if main:
            jobs["main"], sources["main"] = [], main
        objects = {name: Path(scratch) / f"{name}.o" for name in jobs}

        def one(name: str) -> None:
            _run([cxx, *FLAGS, *jobs[name], *extra, "-c", str(sources[name]), "-o", str(objects[name])])

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(one, jobs))
        fresh = Path(scratch) / target.name
        _run([cxx, "-static-pie" if main else "-shared", "-pthread", *extra, *map(str, objects.values()), "-o", str(fresh)])
        # A running process may have the old file mapped: replace it, do not write into it.
        shutil.copy(fresh, target.with_suffix(".new"))  # and its mode: a program of `main` is run
        target.with_suffix(".new").replace(target)
    return [*known, "portable"]


def _accepts(cxx: str, flags: list[str], scratch: Path) -> bool:
    empty = scratch / "empty.cpp"
    empty.write_text("")
    return subprocess.run([cxx, *flags, "-c", str(empty), "-o", str(scratch / "empty.o")], capture_output=True).returncode == 0


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise CannotBuildError(f"{' '.join(command)} failed: {done.stderr.strip()[-2000:]}")
    if done.stderr:
        print(done.stderr, file=sys.stderr)


def wanted() -> str:
    return os.environ.get("THALWEG_NATIVE", "")


try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run by hand, outside an install
    pass
else:

    class NativeKernels(BuildHookInterface):  # type: ignore[type-arg,unused-ignore]
        """Compiles before the wheel is put together, and names the wheel after the machine it is for."""

        def initialize(self, version: str, build_data: dict[str, Any]) -> None:
            if self.target_name != "wheel" or wanted() == "0":
                return
            target = os.environ.get("THALWEG_PLATFORM", "")
            machine = next((name for name in SETS if target.endswith(f"_{name}")), "")
            try:
                sets = build(sets=choose_sets(os.environ.get("THALWEG_SETS", "")), machine=machine)
            except CannotBuildError as e:
                if wanted() == "1":
                    raise
                self.app.display_warning(
                    f"thalweg: no compiled CPU kernels: {e}. The package works without them, slower on a CPU."
                )
                return
            self.app.display_info(f"thalweg: CPU kernels compiled for {', '.join(sets)}")
            if version != "editable":
                build_data["pure_python"] = False
                system = sysconfig.get_platform().replace("universal2", platform.machine())  # compiled for one
                build_data["tag"] = f"py3-none-{target or system.replace('-', '_').replace('.', '_')}"
                build_data["artifacts"].append(str(LIBRARY.relative_to(HERE)))


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word != "--if-missing"]
    named = choose_sets(words[0] if words else os.environ.get("THALWEG_SETS", ""))
    if "--if-missing" not in sys.argv or (wanted() != "0" and not has_sets(named)):
        try:
            print("compiled for", ", ".join(build(sets=named)))
        except CannotBuildError as e:
            if "--if-missing" not in sys.argv or wanted() == "1":
                sys.exit(f"thalweg: no compiled CPU kernels: {e}")
            print(f"thalweg: no compiled CPU kernels: {e}. The package works without them, slower on a CPU.", file=sys.stderr)
