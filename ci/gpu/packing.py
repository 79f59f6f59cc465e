"""Makes the folder that `ci/gpu/run --here --pack DIR` reads: `ci/gpu/pack` starts this.

wheels/         of the packages of ci/gpu/wheels.txt, for the Python of --python
triton/         kernels compiled for --arch, by the Triton that this Python has; without what a launch does not read
identity.json   the commit, whether there are changes to it, a hash of the sources of kernels
summaries/      earlier runs, for --resume auto

What cannot be made here is left out, with a sentence. What is there already is kept where it still fits.
Exit status: 1 if something was left out.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import caches
import identity
from shapes import Case

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
WHEELS = HERE / "wheels.txt"
MACHINES = ("manylinux_2_28_x86_64", "manylinux2014_x86_64", "manylinux1_x86_64")
SOURCES = ("thalweg/backends/triton_kernels",)
KERNELS: dict[str, tuple[Case | None, tuple[str, ...]]] = {
    "thalweg-nano": (None, ("--dtype=float32",)),
    "llama-1b": (Case("llama-1b"), ("--dtype=bfloat16",)),
    "llama-8b": (Case("llama-8b"), ("--dtype=bfloat16",)),
    "llama-8b fp8": (Case("llama-8b", quantization="fp8"), ("--dtype=bfloat16", "--quantization=fp8")),
    "llama-8b fp8 unfused": (
        Case("llama-8b", quantization="fp8", unfused=True),
        ("--dtype=bfloat16", "--quantization=fp8", '--additional-config={"fused_rounding": false}'),
    ),
    "llama-8b int4": (Case("llama-8b", quantization="int4"), ("--dtype=bfloat16", "--quantization=int4")),
    "llama-8b int4 scaled": (
        Case("llama-8b", quantization="int4", scaled=True),
        ("--dtype=bfloat16", "--quantization=int4", '--additional-config={"scaled_codes": true}'),
    ),
    "llama-8b joined": (Case("llama-8b", joined=True), ("--dtype=bfloat16", '--additional-config={"joined_attention": true}')),
    "llama-8b dependent": (
        Case("llama-8b", dependent=True),
        ("--dtype=bfloat16", '--additional-config={"dependent_launch": true}'),
    ),
    "llama-8b int4 dependent": (
        Case("llama-8b", quantization="int4", dependent=True),
        ("--dtype=bfloat16", "--quantization=int4", '--additional-config={"dependent_launch": true}'),
    ),
    "qwen3-30b-a3b dependent": (
        Case("qwen3-30b-a3b", 12, dependent=True),
        ("--dtype=bfloat16", '--additional-config={"dependent_launch": true}'),
    ),
    "llama-8b variant": (Case("llama-8b", variant=True), ("--dtype=bfloat16", "--no-batch-invariant")),
    "qwen3-30b-a3b": (Case("qwen3-30b-a3b", 12), ("--dtype=bfloat16",)),
    "gpt-oss-20b": (Case("gpt-oss-20b", 4), ("--dtype=bfloat16",)),
}
"""What is compiled -> the model (None: the bundled one), and the options with which it serves in the plan `quick`."""
LARGEST = 20 << 20
"""Bytes that a pack should not exceed: a lent machine accepts a tree of 64 MiB, and this one has 25."""
PARTS = ("wheels", "triton", "identity", "summaries")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "pack", help="the folder (default: build/pack)")
    parser.add_argument("--arch", default="sm_90", help="architecture to compile for (default: %(default)s)")
    parser.add_argument("--python", default="3.12", help="version there, for wheels (default: %(default)s)")
    parser.add_argument("--summary", type=Path, nargs="+", default=[], metavar="FILE", help="runs to go on from")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="make only these anew")
    parser.add_argument("--kernels", nargs="+", choices=sorted(KERNELS), default=list(KERNELS), help="of these (default: all)")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    left_out = []
    if "wheels" in args.only:
        left_out += pack_wheels(args.out / "wheels", args.python)
    if "triton" in args.only:
        left_out += pack_kernels(args.out / "triton", args.arch, args.kernels)
    if "identity" in args.only:
        sources = identity.read_sources()
        (args.out / "identity.json").write_text(json.dumps(sources, indent=1) + "\n")
        print(
            f"identity: commit {sources['commit']}{' with changes' if sources['dirty'] else ''}, kernels {sources['kernels']}"
        )
    if "summaries" in args.only:
        left_out += pack_summaries(args.out / "summaries", args.summary)
    size = sum(f.stat().st_size for f in args.out.rglob("*") if f.is_file())
    print(f"{args.out}: {size / 1e6:.1f} MB" + (f", more than {LARGEST / 1e6:.0f}" if size > LARGEST else ""))
    print("\n".join(f"left out: {words}" for words in left_out), end="\n" if left_out else "")
    return 1 if left_out else 0


def pack_wheels(folder: Path, python: str) -> list[str]:
    """By this Python's pip, from the index that it is set to use. They have a few hundred kB."""
    names = [line for line in WHEELS.read_text().splitlines() if line and not line.startswith("#")]
    with tempfile.TemporaryDirectory() as scratch:
        command = [
            sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "-d", scratch, "--no-deps",
            "--only-binary=:all:", f"--python-version={python}", "--implementation=cp",
            *(f"--platform={m}" for m in MACHINES), "-c", str(ROOT / "ci" / "constraints.txt"), "-r", str(WHEELS),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            return [f"wheels of {', '.join(names)}: {(done.stderr or done.stdout).strip()[-300:]}"]
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(scratch, folder)
    print(f"wheels: {', '.join(sorted(f.name for f in folder.iterdir()))}")
    return []


def pack_kernels(folder: Path, arch: str, names: Sequence[str]) -> list[str]:
    """Compiled into a folder for these sources of kernels, so that another pack compiles nothing twice, and holds no kernel
    that its sources no longer launch."""
    if find_spec("triton") is None:
        return [f"kernels: {sys.executable} has no triton"]
    whole, left_out = ROOT / "build" / "compiled" / f"{arch}-{identity.hash_sources(ROOT, SOURCES)}", []
    whole.mkdir(parents=True, exist_ok=True)
    caches.relocate(whole)
    for name in names:
        case, options = KERNELS[name]
        with tempfile.TemporaryDirectory() as scratch:
            model = []
            if case is not None:
                model = [scratch]
                (Path(scratch) / "config.json").write_text(json.dumps(case.config()))
            command = [sys.executable, "-m", "thalweg", "compile", "--arch", arch, "--cache-dir", str(whole), "--json"]
            done = subprocess.run([*command, *options, *model], capture_output=True, text=True, check=False)
        try:
            (report,) = json.loads(done.stdout)
        except ValueError:
            left_out.append(f"kernels of {name}: {(done.stderr or done.stdout).strip()[-300:]}")
            continue
        counts = f"{report['compiled']} compiled, {report['cached']} there"
        print(f"kernels of {name}: {counts}, {report['seconds']:.0f} s", flush=True)
        left_out += [f"kernels of {name}: {problem}" for problem in report["problems"]]
    shutil.rmtree(folder, ignore_errors=True)
    caches.copy(whole, folder)
    caches.strip(folder)
    print(f"kernels: {caches.count(folder)} for {arch}")
    return left_out


def pack_summaries(folder: Path, files: Sequence[Path]) -> list[str]:
    """Those named, numbered, next to the ones that are there."""
    folder.mkdir(exist_ok=True)
    absent = [f"summary: there is no file {f}" for f in files if not f.is_file()]
    for file in (f for f in files if f.is_file()):
        name = json.loads(file.read_text())["name"].replace(" ", "-").replace(":", "")
        shutil.copy(file, folder / f"{name}.json")
        print(f"summary: {name}")
    return absent


if __name__ == "__main__":
    sys.exit(main())
