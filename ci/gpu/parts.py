"""What the parts of `ci/gpu/run` are made of. `plans.py` says which there are, and in which order they run."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from shapes import SETTINGS, Case

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
LINEAR = "test_ops and (linear- or lora_) and not variant"
FLASH_4 = "test_attention and flash-attn-4"
NO_SPLIT = "test_ops and linear- and no-split-k"
UNSHOWN = {"CUBLASLT_WORKSPACE_SIZE": "1", "CUBLAS_WORKSPACE_CONFIG": ":16:8"}
"""Environment of what shows that a library's rows keep their bits: that of `thalweg.backends.torch_gpu.linear`."""
REST = f"not ({ATTENTION}) and not ({LINEAR})"
SMALL = {"step": "step 2", "prompt": "prompt 16", "kernels": "kernels of prompt 16", "requests": "requests 3 x 8 + 8"}
"""What a figure's name begins with -> the figure of its kind that a try-out on a processor has."""
HOSTED_SHARE = 7
"""A try-out on a processor runs one case in so many: the whole kit has its own evidence there (ci/support.py)."""


@dataclass(frozen=True, slots=True)
class Part:
    """One process of a run. least: seconds below which it is not worth starting; most: seconds after which it hangs. figures,
    evidence, results: files it writes, as JSON, as the kit's evidence and as JUnit's. default: in a run that names no parts.

    command: number of the command of a plan that runs it. judges: it says whether what is served is right, so a run without
    it is not green. lead: what it finds is looked into, and is no failure. resumes: it understands --have, an earlier report
    with figures that it keeps. wanted: figures that it must have to be complete; (): any that it wrote."""

    name: str
    words: list[str]
    least: float
    most: float
    env: Mapping[str, str] = field(default_factory=dict)
    figures: Path | None = None
    evidence: Path | None = None
    results: Path | None = None
    default: bool = True
    command: int = 1
    judges: bool = False
    lead: bool = False
    resumes: bool = False
    wanted: tuple[str, ...] = ()


def accelerated(platform: str) -> bool:
    return platform not in (*NOT_DEVICES, HOSTED)


@dataclass(frozen=True, slots=True)
class PartFactory:
    """Makes the parts of one platform. work: where they write. processes: of the kit; 0: as the machine's cores allow."""

    platform: str
    work: Path
    processes: int = 0

    @property
    def full(self) -> bool:
        """Full sizes, as on a device."""
        return accelerated(self.platform)

    def name_file(self, name: str, end: str) -> Path:
        return self.work / f"{name.replace(' ', '-')}.{end}"

    def make_script(self, name: str, least: float, most: float, *more: str, file: str = "", **facts: Any) -> Part:
        """A script of this folder, called as the part is or `file`."""
        out = self.name_file(name, "json")
        words = [sys.executable, str(HERE / f"{file or name}.py"), "--device", self.platform, *more, f"--output-json={out}"]
        return Part(name, words, least, most, figures=out, **facts)

    def make_measure(
        self, name: str, case: Case, figures: Sequence[str], least: float, most: float, repeats: int = 5, **facts: Any
    ) -> Part:  # fmt: skip
        """Figures of one case, by their names. Where they mean nothing anyway, those of a small case."""
        if not self.full:
            moe = case.shape not in ("llama-1b", "llama-8b")
            case = replace(case, shape="tiny-moe" if moe else "tiny", layers=2 if case.layers else 0)
            figures = tuple(dict.fromkeys(_shrink(f) for f in figures))
        more = [f"--shapes={case.shape}", f"--repeats={repeats}", f"--figures={','.join(figures)}"]
        more += [f"--layers={case.layers}"] if case.layers else []
        more += [f"--quantization={case.quantization}"] if case.quantization else []
        more += [f"--{name}" for name in SETTINGS if getattr(case, name)]
        more += [] if self.full else ["--quick"]
        wanted = tuple(case.named(f) for f in figures)
        return self.make_script(name, least, most, *more, file="measure", resumes=True, wanted=wanted, **facts)

    def make_kit(
        self, name: str, which: str, least: float, most: float, share: tuple[int, int] = (1, 1), **facts: Any
    ) -> Part:  # fmt: skip
        """The conformance kit's tests that pytest's -k selects, or one share of them."""
        evidence, results = self.name_file(name, "evidence.json"), self.name_file(name, "xml")
        i, n = share if self.platform != HOSTED else (share[0], share[1] * HOSTED_SHARE)
        level = "hosted" if self.platform == HOSTED else "executed"
        words = [
            *kit_command(self.platform), "-k", which, f"--part={i}/{n}", "--maxfail=30", f"--evidence={evidence}",
            f"--evidence-level={level}", f"--junitxml={results}",
        ]  # fmt: skip
        if find_spec("xdist") and self.platform not in ONE_PROCESS:
            words += ["-n", str(self.processes or max(2, min(PROCESSES, (os.cpu_count() or 2) - 2))), "--dist=worksteal"]
        if find_spec("pytest_timeout"):
            words += ["-o", "timeout=120"]
        env = {"OMP_NUM_THREADS": "1"}
        return Part(name, words, least, most, env, evidence=evidence, results=results, judges=True, **facts)

    def make_unshown(self) -> Part:
        """cuBLASLt without split sums, taken to keep a row's bits: if every row test passes here, and `rows` finds them equal
        too, the architecture belongs into SHOWN (thalweg/backends/torch_gpu/linear.py)."""
        part = self.make_kit("kit no split k", NO_SPLIT, 20, 120, lead=True)
        return replace(
            part, words=[*part.words, '--platform-options={"unshown_products": true}'], env={**part.env, **UNSHOWN},
            judges=False,
        )  # fmt: skip

    def make_flash4(self) -> list[Part]:
        """FlashAttention-4 from the kernels of `ci/gpu/flash4.py`, on request. If every row test passes, the architecture
        belongs into SHOWN (thalweg/backends/cuda/flash4.py)."""
        part = self.make_kit("kit flash-attn-4", FLASH_4, 20, 120, lead=True, default=False)
        options = '--platform-options={"flash_attn_4": true, "unshown_products": true}'
        case = Case("llama-8b", variant=True, flash4=True)
        figures = ("open", "step 1", "step 64", "step 256", "prompt 512", "prompt 2048", "prompt 8192")
        return [
            replace(part, words=[*part.words, options], env={**part.env, **UNSHOWN}, judges=False),
            self.make_measure("measure 8b flash4", case, figures, 25, 120, repeats=3, lead=True, default=False),
        ]  # fmt: skip

    def make_others(self) -> list[Part]:
        """What a run does on request: what needs no device, or what other parts show better."""
        out = []
        own = ROOT / "tests" / "backends" / TESTS.get(self.platform, self.platform)
        if own.is_dir():
            results = self.name_file("tests", "xml")
            words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(own), f"--junitxml={results}"]
            out.append(Part("tests", words, 60, 900, results=results, default=False))
        out += [Part(mode, [*kit_command(self.platform), f"--mode={kind}"], 30, 600, default=False)
                for mode, kind in (("kernels", "perf"), ("support", "support"))]  # fmt: skip
        bench = [sys.executable, "-m", "thalweg", "bench"]
        few = {
            "latency": ["--output-len=16", "--num-iters-warmup=1", "--num-iters=2"],
            "throughput": ["--num-prompts=4", "--input-len=16", "--output-len=8"],
        }
        for kind, sizes in few.items():
            file = self.name_file(f"bench {kind}", "json")
            words = [*bench, kind, "--device", self.platform, "--output-json", str(file), *([] if self.full else sizes)]
            out.append(Part(f"bench {kind}", words, 30, 600, figures=file, default=False))
        out.append(Part("bench host", [*bench, "host"], 20, 300, default=False))
        return out


def _shrink(figure: str) -> str:
    """The figure of a try-out for one of a device, by its kind: sizes that take no time."""
    for kind, small in SMALL.items():
        if figure.startswith(kind):
            return small if not figure.endswith(" 1") else figure
    return figure


def kit_command(platform: str) -> list[str]:
    kit = ["--pyargs", "thalweg.hal.testing", f"--platform={platform}"]
    return [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *kit]
