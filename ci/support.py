"""Makes the support matrix anew: runs of the conformance kit and of the compile check, their evidence, and
docs/evidence/support.md.

    python ci/support.py [NAME ...] [--list] [--compiled FILE ...]
    python ci/support.py --ledger
    python ci/support.py --readme

Each NAME is one file of thalweg/assets/support; without names, all of them. --compiled: what `ci/gpu/compile.py --json FILE`
wrote (in parts, a file for each), so that nothing is compiled again (minutes per architecture). --ledger: what devices showed,
from the ledger of runs on them (docs/evidence/device), and from nothing else; then the README's table too, which --readme makes
without the rest. Run it after kernels changed; nothing there is typed by hand.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "thalweg" / "assets" / "support"
PAGE = ROOT / "docs" / "evidence" / "support.md"
GPUS = "cuda,rocm,xpu"
COMPILED = {"sm_": "cuda", "gfx": "rocm"}
"""Prefix of an architecture -> platform, for what can be compiled without the vendor's own tools."""
DEVICE = "device-"
"""How a file begins that a run on a device made: no run here makes it anew."""
README = ROOT / "README.md"
BEGIN, END = "<!-- python ci/support.py --readme -->", "<!-- the end of that table -->"
HARDWARE = {
    "cpu": ("x86: AVX512 with VNNI, AVX512, AVX2, any other", ""),
    "cuda": (
        "NVIDIA, sm_80 and later",
        "Hosted on a processor. Triton kernels interpreted, and compiled for sm_80, sm_90, sm_100, sm_120",
    ),
    "rocm": (
        "AMD Instinct and RDNA4", "hosted. Triton kernels interpreted, and compiled for gfx90a, gfx942, gfx950, gfx1201",
    ),
    "xpu": ("Intel GPUs", "hosted. Triton kernels interpreted"),
    "tpu": (
        "Google TPU v5e, v6e, v7x",
        "served on JAX's host platform. Pallas kernels interpreted there, and compiled with libtpu",
    ),
}  # fmt: skip
"""Platform -> its hardware, and what was shown without it. The README's table has these rows."""
JAX = {"jax_platform": "cpu", "compilation_cache": ""}


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the kit. options: the platform's, as JSON. only: of its tests, where all take too long."""

    platform: str
    level: str
    serves: str = ""
    options: str = ""
    only: str = ""

    def command(self, file: Path) -> list[str]:
        words = [sys.executable, "-m", "pytest", "-p", "thalweg.hal.testing.options", "--pyargs", "thalweg.hal.testing", "-q",
                 "-p", "no:cacheprovider", "-o", "timeout=0", f"--platform={self.platform}", f"--evidence={file}",
                 f"--evidence-level={self.level}"]  # fmt: skip
        words += [f"--evidence-for={self.serves}"] if self.serves else []
        words += ["--platform-options", self.options] if self.options else []
        return words + (["-k", self.only] if self.only else [])


KERNELS = "test_kernel_gives"
ATTENTION = ("(test_mixed or test_a_step_of) and (gqa-float32 or window-float32 or softcap-float32 or latent-float32)"
             " and not -8 and not -32 and not -256")  # fmt: skip
BOTH = f"{KERNELS} or ({ATTENTION})"
"""What evidence is made of: every sample of every op, and attention by each way it takes. Passing the whole kit is CI's."""
PALLAS = f"{KERNELS} and (pallas or megablox)"
SPECS = "gqa or window or softcap or sinks or e4m3 or int8"
CACHES = f"(test_mixed or test_a_step_of) and ({SPECS}) and float32 and not -8 and not -32 and not -256"
"""Attention by every kind of cache too, which take ways of their own on the TPU."""
RUNS = {
    "reference": Run("reference", "executed", only=BOTH),
    "cpu": Run("cpu", "executed", only=BOTH),
    "torch-gpu-hosted": Run("thalweg.backends.torch_gpu.testing:HostGpuPlatform", "hosted", GPUS, only=BOTH),
    "triton-interpreted": Run("thalweg.backends.triton_kernels.testing:InterpretPlatform", "interpreted", GPUS, only=BOTH),
    "tpu-hosted": Run("tpu", "hosted", options=json.dumps({**JAX, "attention": "xla"}), only=f"{KERNELS} or ({CACHES})"),
    "tpu-interpreted": Run("tpu", "interpreted", options=json.dumps({**JAX, "attention": "pallas"}), only=CACHES),
    "tpu-interpreted-ops": Run("tpu", "interpreted", options=json.dumps({**JAX, "attention": "pallas"}), only=PALLAS),
}


def compiled(outcomes: Iterable[Mapping[str, Any]], launches: Mapping[str, set[tuple[str, str]]]) -> dict[str, dict[str, Any]]:
    """{file name: evidence} of compilations, a file per platform. launches: a launch's name -> the (op, kernel) it serves; a
    launch that serves none is an error, as the evidence would be of something else."""
    files: dict[str, dict[str, Any]] = {}
    for o in outcomes:
        platform = next((p for prefix, p in COMPILED.items() if o["arch"].startswith(prefix)), None)
        if platform is None:
            continue
        if o["launch"] not in launches:
            raise SystemExit(f"support: compiled {o['launch']!r}, which the library no longer launches: compile again")
        file = files.setdefault(
            f"triton-compiled-{platform}", {"level": "compiled", "platforms": [platform], "targets": [], "cells": {}}
        )
        if o["arch"] not in file["targets"]:
            file["targets"].append(o["arch"])
        for op, kernel in launches[o["launch"]]:
            cell = file["cells"].setdefault(op, {}).setdefault(kernel, {"passed": 0, "failed": 0, "refused": 0})
            cell["failed" if o["problems"] else "passed"] += 1
    return files


def launch_names() -> dict[str, set[tuple[str, str]]]:
    """A launch's name, as the compile check tells it -> the (op, kernel) that make it."""
    check = _load_script("compile", "gpu_compile")
    names: dict[str, set[tuple[str, str]]] = {}
    for arch in check.ARCHS:
        lib = check.library(arch)
        for k in lib.kernels:
            for name, args, static in check.calls(k):
                for launch in check.record(lambda k=k, args=args, static=static: k.run(*args, **static), name):
                    names.setdefault(launch.name, set()).add((k.op, k.name))
        for launch in check.launches(arch):
            if launch.name not in names:  # what is no op's is attention's
                names[launch.name] = {("attention", b.name) for b in lib.attention if _made_by(launch.name, b)}
    return names


def _made_by(name: str, backend: Any) -> bool:
    """The compile check's labels name the attention that is exact; launches equal for both are told once, under the other."""
    return backend.batch_invariant or " exact " not in name


def make(name: str) -> None:
    file = FOLDER / f"{name}.json"
    before = file.read_text() if file.exists() else None
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(RUNS[name].command(file), cwd=ROOT, env=env, check=False)
    if done.returncode not in (0, 1):  # 1: some test failed, and the matrix says so
        if before is not None:
            file.write_text(before)
        raise SystemExit(f"support: {name}: pytest ended with {done.returncode}")


def compile_all() -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "compiled.json"
        subprocess.run([sys.executable, ROOT / "ci" / "gpu" / "compile.py", "--json", file], cwd=ROOT, check=False)
        result: list[dict[str, Any]] = json.loads(file.read_text())
        return result


def from_device(summary: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """(file name, evidence) of a run on a device: its file of the ledger, or its summary. Exits in words where it was none, or
    has no evidence."""
    if not summary.get("accelerated"):
        raise SystemExit(f"support: this was no device: {summary.get('note', 'no summary of a run')}")
    if not summary.get("evidence", {}).get("cells"):
        raise SystemExit("support: no part of the kit has run there, or none to its end")
    return f"{DEVICE}{summary['platform']}", summary["evidence"]


def select_evidence(runs: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The runs that are evidence: of a tree without changes, in which the kit ran."""
    return {n: r for n, r in runs.items() if not r["dirty"] and r.get("evidence", {}).get("cells")}


def collect_evidence(runs: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """{file name: evidence}, a file per platform, with the names of its cards. runs: of the ledger, the oldest first. Of a
    kernel on a card the newest run counts, and cases on several cards add up."""
    cells: dict[str, dict[tuple[str, str, str], Mapping[str, int]]] = {}
    platforms: dict[str, list[str]] = {}
    for run in select_evidence(runs).values():
        file, evidence = from_device(run)
        platforms[file] = evidence["platforms"]
        for op, kernels in evidence["cells"].items():
            for kernel, counts in kernels.items():
                cells.setdefault(file, {})[run["identity"]["card"], op, kernel] = counts
    result = {}
    for file, each in cells.items():
        sums: dict[str, dict[str, dict[str, int]]] = {}
        for (_, op, kernel), counts in each.items():
            cell = sums.setdefault(op, {}).setdefault(kernel, {"passed": 0, "failed": 0, "refused": 0})
            for word in cell:
                cell[word] += counts[word]
        cards = sorted({card for card, _, _ in each})
        result[file] = {"level": "executed", "platforms": platforms[file], "cards": cards, "cells": sums}
    return result


def take_ledger(folder: Path = FOLDER) -> None:
    """Evidence of devices, anew. A file of which the ledger knows nothing is removed."""
    result = collect_evidence(load_ledger().read_entries())
    for old in folder.glob(f"{DEVICE}*.json"):
        old.unlink()
    for name, evidence in result.items():
        (folder / f"{name}.json").write_text(json.dumps(evidence, indent=1, sort_keys=True) + "\n")


def load_ledger() -> Any:
    """ci/gpu/ledger.py, which lies in another folder of scripts."""
    return _load_script("ledger", "gpu_ledger")


def _load_script(name: str, module: str) -> Any:
    """A script of ci/gpu, as a module of another name."""
    spec = importlib.util.spec_from_file_location(module, ROOT / "ci" / "gpu" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    result = sys.modules[module] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(result)
    return result


def make_readme_table(runs: Mapping[str, Mapping[str, Any]], folder: Path = FOLDER) -> str:
    """Where this has run: rows of HARDWARE. runs: of the ledger, the only source for devices. The processor's row follows
    from the kit's own file."""
    ran = select_evidence(runs)
    lines = ["| platform | hardware | run on that hardware | what was shown |", "|---|---|---|---|"]
    for platform, (hardware, shown) in HARDWARE.items():
        mine = {run["identity"]["card"]: (name, run) for name, run in ran.items() if run["platform"] == platform}
        cards = [_describe_card(card, name, run) for card, (name, run) in sorted(mine.items())]
        own = folder / f"{platform}.json"
        yes = bool(cards) or (own.is_file() and json.loads(own.read_text())["level"] == "executed")
        cells = [f"`{platform}`", hardware, "yes" if yes else "not yet", ". ".join([*cards, *filter(None, [shown])])]
        lines.append(f"| {' | '.join(cells)} |".replace("|  |", "| |"))
    return "\n".join(lines)


def _describe_card(card: str, name: str, run: Mapping[str, Any]) -> str:
    """The newest run on a card."""
    found = load_ledger().count_cases(run)
    failed = f", {found['failed']} fail" if found["failed"] else ""
    cases = f"{found['passed']} cases of the conformance kit pass{failed}"
    return f"{card}, {run['date'][:10]}: {cases} ([figures](docs/evidence/device/{name}.json))"


def replace_table(text: str, table: str) -> str:
    """The README with this table between its marks. SystemExit if it has none."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"support: --readme: README.md has no lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def write_readme() -> None:
    README.write_text(replace_table(README.read_text(), make_readme_table(load_ledger().read_entries())))
    print(f"{README.relative_to(ROOT)} is up to date")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"of {', '.join([*RUNS, 'compiled'])}; default: all")
    parser.add_argument("--list", action="store_true", help="print the command of each and run nothing")
    parser.add_argument("--compiled", type=Path, nargs="*", default=[], metavar="FILE")
    parser.add_argument("--ledger", action="store_true", help="evidence of devices anew, and the README's table")
    parser.add_argument("--readme", action="store_true", help="the README's table, and nothing else")
    args = parser.parse_args()
    if args.ledger:
        take_ledger()
        page()
    if args.ledger or args.readme:
        write_readme()
        return 0
    if unknown := set(args.names) - {*RUNS, "compiled"}:
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    if args.list:
        print("\n".join(" ".join(r.command(FOLDER / f"{n}.json")) for n, r in RUNS.items()))
        return 0
    names = args.names or [*RUNS, "compiled"]
    for name in names:
        print(f"== {name}", flush=True)
        if name in RUNS:
            make(name)
            continue
        outcomes = [o for file in args.compiled for o in json.loads(file.read_text())] or compile_all()
        for file, evidence in compiled(outcomes, launch_names()).items():
            (FOLDER / f"{file}.json").write_text(json.dumps(evidence, indent=1, sort_keys=True) + "\n")
    return page()


def page() -> int:
    result = subprocess.run(
        [sys.executable, "-m", "thalweg", "backends", "--matrix"], capture_output=True, text=True, check=True
    )
    PAGE.write_text(result.stdout)
    print(f"{PAGE.relative_to(ROOT)} is up to date")
    return 0


if __name__ == "__main__":
    sys.exit(main())
