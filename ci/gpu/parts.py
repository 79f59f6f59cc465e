"""The parts of `ci/gpu/run`, in the order in which a machine that may go at any time should run them: first what says whether
the numbers are right, then what they cost, then everything else."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
HOSTED = "thalweg.backends.torch_gpu.testing:HostGpuPlatform"
NOT_DEVICES = ("cpu", "reference", "null")
TESTS = {"cuda": "torch_gpu", "rocm": "torch_gpu", "xpu": "torch_gpu", HOSTED: "torch_gpu"}
"""Folders of tests/backends, where they are not the platform's name."""
PROCESSES = 14
"""Of the kit, at most: each holds a context of the device and compiles its own kernels."""
ONE_PROCESS = ("tpu",)
"""Platforms whose device one process holds alone."""

ATTENTION = "test_attention and not variant"
LINEAR = "test_ops and linear- and not variant"
NO_SPLIT = "test_ops and linear- and no-split-k"
UNSHOWN = {"CUBLASLT_WORKSPACE_SIZE": "1", "CUBLAS_WORKSPACE_CONFIG": ":16:8"}
"""Environment of what shows that a library's rows keep their bits: that of `thalweg.backends.torch_gpu.linear`."""
REST = f"not ({ATTENTION}) and not ({LINEAR})"
HOSTED_SHARE = 7
"""A try-out on a processor runs one case in so many: the whole kit has its own evidence there (ci/support.py)."""


@dataclass(frozen=True, slots=True)
class Part:
    """One process of a run. least: seconds below which it is not worth starting; most: seconds after which it hangs. figures,
    evidence, results: files it writes, as JSON, as the kit's evidence and as JUnit's. default: in a run that names no parts."""

    name: str
    command: list[str]
    least: float
    most: float
    env: Mapping[str, str] = field(default_factory=dict)
    figures: Path | None = None
    evidence: Path | None = None
    results: Path | None = None
    default: bool = True


def accelerated(platform: str) -> bool:
    return platform not in (*NOT_DEVICES, HOSTED)


def parts(platform: str, work: Path, processes: int = 0) -> dict[str, Part]:
    """Name -> part, in order. Each runs in its own process, so that one crash does not hide the others. work: where they
    write. processes: of the kit; 0: as the machine's cores allow."""
    made = [
        _script("smoke", work, platform, 10, 180),
        _script("checks", work, platform, 20, 240, *([] if accelerated(platform) else ["--requests=2", "--tokens=4"])),
        _kit("kit exact attention", platform, work, ATTENTION, processes, 30, 300),
        _kit("kit exact linear", platform, work, LINEAR, processes, 30, 300),
        *([_unshown(platform, work, processes)] if platform == "cuda" else []),
        *(_measure(platform, work, shape, False) for shape in ("1b", "8b")),
        *([_tiles(platform, work), _load(platform, work)] if platform in TESTS else []),
        *(_kit(f"kit rest {i}", platform, work, REST, processes, 40, 420, (i, 2)) for i in (1, 2)),
        *(_measure(platform, work, shape, True) for shape in ("1b", "8b")),
        _script("sweep", work, platform, 60, 420, *([] if accelerated(platform) else ["--quick"])),
        _script("sanitizer", work, platform, 40, 300),
        *_others(platform, work),
    ]
    if platform == HOSTED:  # more threads make its small operations slower
        made = [replace(p, env={**p.env, "OMP_NUM_THREADS": "1"}) for p in made]
    return {p.name: p for p in made}


def _file(work: Path, name: str, end: str) -> Path:
    return work / f"{name.replace(' ', '-')}.{end}"


def _script(name: str, work: Path, platform: str, least: float, most: float, *more: str, file: str = "") -> Part:
    out = _file(work, name, "json")
    words = [sys.executable, str(HERE / f"{file or name}.py"), "--device", platform, *more, f"--output-json={out}"]
    return Part(name, words, least, most, figures=out)


def _measure(platform: str, work: Path, shape: str, as_it_comes: bool) -> Part:
    name = f"measure {shape}" + (" variant" if as_it_comes else "")
    words = [f"--shapes=llama-{shape}"] if accelerated(platform) else ["--shapes=tiny", "--quick"]
    least, most = (45, 200) if shape == "1b" else (80, 330)
    return _script(name, work, platform, least, most, *words, *(["--variant"] if as_it_comes else []), file="measure")


def _tiles(platform: str, work: Path) -> Part:
    return _script("tiles", work, platform, 60, 240, *([] if accelerated(platform) else ["--shape=tiny", "--quick"]))


def _load(platform: str, work: Path) -> Part:
    return _script("load", work, platform, 30, 150, *([] if accelerated(platform) else ["--shape=tiny", "--readers=0,2"]))


def _kit(
    name: str, platform: str, work: Path, which: str, processes: int, least: float, most: float,
    share: tuple[int, int] = (1, 1),
) -> Part:  # fmt: skip
    evidence, results = _file(work, name, "evidence.json"), _file(work, name, "xml")
    i, n = share if platform != HOSTED else (share[0], share[1] * HOSTED_SHARE)
    words = [*_pytest(platform), "-k", which, f"--part={i}/{n}", "--maxfail=30", f"--evidence={evidence}",
             f"--evidence-level={'hosted' if platform == HOSTED else 'executed'}", f"--junitxml={results}"]  # fmt: skip
    if find_spec("xdist") and platform not in ONE_PROCESS:
        words += ["-n", str(processes or max(2, min(PROCESSES, (os.cpu_count() or 2) - 2))), "--dist=worksteal"]
    if find_spec("pytest_timeout"):
        words += ["-o", "timeout=120"]
    return Part(name, words, least, most, {"OMP_NUM_THREADS": "1"}, evidence=evidence, results=results)


def _unshown(platform: str, work: Path, processes: int) -> Part:
    """cuBLASLt without split sums, taken to keep a row's bits: if every row test passes here, and `sweep` finds them equal too,
    the architecture belongs into SHOWN (thalweg/backends/torch_gpu/linear.py)."""
    part = _kit("kit no split k", platform, work, NO_SPLIT, processes, 20, 120)
    return replace(part, command=[*part.command, '--platform-options={"unshown_products": true}'], env={**part.env, **UNSHOWN})


def _pytest(platform: str) -> list[str]:
    kit = ["--pyargs", "thalweg.hal.testing", f"--platform={platform}"]
    return [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *kit]


def _others(platform: str, work: Path) -> list[Part]:
    """What a run does on request: what needs no device, or what other parts show better."""
    out = []
    own = ROOT / "tests" / "backends" / TESTS.get(platform, platform)
    if own.is_dir():
        results = _file(work, "tests", "xml")
        words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(own), f"--junitxml={results}"]
        out.append(Part("tests", words, 60, 900, results=results, default=False))
    out += [Part(mode, [*_pytest(platform), f"--mode={kind}"], 30, 600, default=False)
            for mode, kind in (("kernels", "perf"), ("support", "support"))]  # fmt: skip
    bench = [sys.executable, "-m", "thalweg", "bench"]
    few = {
        "latency": ["--output-len=16", "--num-iters-warmup=1", "--num-iters=2"],
        "throughput": ["--num-prompts=4", "--input-len=16", "--output-len=8"],
    }
    for kind, sizes in few.items():
        file = _file(work, f"bench {kind}", "json")
        words = [*bench, kind, "--device", platform, "--output-json", str(file)]
        words += [] if accelerated(platform) else sizes
        out.append(Part(f"bench {kind}", words, 30, 600, figures=file, default=False))
    out.append(Part("bench host", [*bench, "host"], 20, 300, default=False))
    return out
