"""What a figure is a figure of: the card, the software that drives it, and our sources.

Figures of two runs go into one table only where all of it is equal (`relation`).
"""

from __future__ import annotations

import hashlib
import json
import os
import platform as host
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SOURCES = ("thalweg/backends", "thalweg/hal/ops")
"""What decides how fast a kernel is, and which bits it gives."""
MADE = (".pyc", ".so", ".o", ".a")
"""Suffixes of files that are made of sources."""
CARD, SOFTWARE, KERNELS = "of another card", "of other software", "of other kernels"
PARTS: Mapping[str, tuple[str, ...]] = {
    CARD: ("platform", "card"), SOFTWARE: ("driver", "torch", "triton"), KERNELS: ("kernels",),
}  # fmt: skip
"""Relation -> the entries of an identity of which one differs. The first that applies counts."""


def identify(platform: str, pack: Path | None = None, root: Path = ROOT) -> dict[str, Any]:
    """The identity of a run on this machine. driver: its major version. pack: a folder of `ci/gpu/pack`, which knows the
    commit where there is no repository. SystemExit if it was made of other sources."""
    return {"platform": platform, **read_machine(platform), **read_sources(root, pack)}


def read_machine(platform: str) -> dict[str, Any]:
    card, driver = _read_card(platform)
    return {"card": card, "driver": driver, "torch": _read_version("torch"), "triton": _read_version("triton")}


def read_sources(root: Path = ROOT, pack: Path | None = None) -> dict[str, Any]:
    """commit (full, None: unknown), dirty, kernels (a hash of SOURCES)."""
    kernels = hash_sources(root)
    if pack is not None and (file := pack / "identity.json").is_file():
        content: dict[str, Any] = json.loads(file.read_text())
        if content["kernels"] != kernels:
            sys.exit(f"--pack: {pack} was made of other sources than these; make it again: ci/gpu/pack")
        return {k: content[k] for k in ("commit", "dirty", "kernels")}
    commit = _run_git(root, "rev-parse", "HEAD")
    dirty = bool(_run_git(root, "status", "--porcelain")) if commit else None
    return {"commit": commit, "dirty": dirty, "kernels": kernels}


def hash_sources(root: Path = ROOT, folders: Sequence[str] = SOURCES) -> str:
    """Of names and contents of all files of these folders, 16 hexadecimal digits."""
    result = hashlib.sha256()
    for folder in folders:
        for file in sorted((root / folder).rglob("*")):
            if file.is_file() and file.suffix not in MADE and "__pycache__" not in file.parts:
                result.update(f"{file.relative_to(root).as_posix()}\0".encode())
                result.update(hashlib.sha256(file.read_bytes()).digest())
    return result.hexdigest()[:16]


def compare(earlier: Mapping[str, Any] | None, now: Mapping[str, Any]) -> str:
    """How figures of `earlier` differ from those of `now`: "" (not at all), CARD, SOFTWARE or KERNELS. What has no
    identity, or does not know its kernels, is of other kernels."""
    if not earlier:
        return KERNELS
    for words, names in PARTS.items():
        if any(earlier.get(n) != now.get(n) for n in names):
            return words
    return "" if now.get("kernels") else KERNELS


def words_of(identity: Mapping[str, Any]) -> str:
    """A card and a commit, for a table."""
    commit = (identity.get("commit") or "unknown commit")[:12]
    return f"{identity.get('card', '?')}, {commit}{' with changes' if identity.get('dirty') else ''}"


def _read_card(platform: str) -> tuple[str, str | None]:
    """(name, major version of the driver)."""
    kind = {"cuda": "cuda", "rocm": "cuda", "xpu": "xpu"}.get(platform)
    if kind is None:
        return f"host: {_read_processor()}", None
    if platform == "cuda" and shutil.which("nvidia-smi"):
        first = os.environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0] or "0"
        content = _run("nvidia-smi", "-i", first, "--query-gpu=name,driver_version", "--format=csv,noheader")
        name, _, driver = (content.splitlines() or [""])[0].rpartition(",")
        if name:
            return name.strip(), driver.strip().partition(".")[0]
    code = f"import torch; print(torch.{kind}.get_device_name(0))"  # not here: a process that asks holds memory of the device
    return _run(sys.executable, "-c", code) or "unknown", _read_module()


def _read_module() -> str | None:
    for file in ("/proc/driver/nvidia/version", "/sys/module/amdgpu/version", "/sys/module/xe/version"):
        if Path(file).is_file() and (found := re.search(r"\b(\d+)\.\d+", Path(file).read_text())):
            return found[1]
    return None


def _read_processor() -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.M)
    except OSError:
        found = None
    return found[1].strip() if found else host.machine()


def _read_version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _run_git(root: Path, *words: str) -> str | None:
    """None: no repository, or no git."""
    if not (root / ".git").exists() or not shutil.which("git"):
        return None
    return _run("git", "-C", str(root), *words)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""
