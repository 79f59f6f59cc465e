"""Folders of kernels that Triton compiled, made ready for another place.

Triton keeps the files of each kernel in one folder, with a list of their paths (`__grp__NAME.json`). The paths are those of
the process that compiled it, so a cache that was carried elsewhere is not found until they are written anew. To launch a
kernel, the binary and its description are enough; the texts of the compiler's stages are four fifths of a cache.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

GROUP = "__grp__"
TEXTS = (".ttir", ".ttgir", ".llir", ".ptx", ".source", ".amdgcn")
"""Suffixes of what a launch does not read."""


def count(cache: Path) -> int:
    """Kernels that a cache holds: each has one list."""
    return sum(1 for _ in cache.glob(f"*/{GROUP}*.json"))


def relocate(cache: Path) -> None:
    """Write the lists of paths anew, for where the cache lies now. Files that are not there are left out of them."""
    for listed in cache.resolve().glob(f"*/{GROUP}*.json"):
        names = json.loads(listed.read_text())["child_paths"]
        there = {name: str(listed.with_name(name)) for name in names if listed.with_name(name).is_file()}
        listed.write_text(json.dumps({"child_paths": there}))


def copy(source: Path, target: Path) -> Path:
    """`target`, with what it lacks of `source`, usable where it lies."""
    target.mkdir(parents=True, exist_ok=True)
    for folder in source.iterdir():
        if folder.is_dir() and not (target / folder.name).exists():
            shutil.copytree(folder, target / folder.name)
    relocate(target)
    return target


def strip(cache: Path) -> None:
    """Remove the texts, and the lists' paths to them."""
    for file in cache.glob("*/*"):
        if file.suffix in TEXTS:
            file.unlink()
    relocate(cache)
