"""vLLM's names for programs written for it: `import vllm` imports thalweg, where a program or its user enables that.

Nothing happens on import. `as_vllm()` puts a folder with a package `vllm` on the path of this process. `environment()` does
so for child processes; `thalweg as-vllm COMMAND` uses it. Both fail where the real vllm is installed: one name must not mean
two things. `arguments` and `names` implement that package `vllm`.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path

from thalweg.errors import ConfigError

PATH = Path(__file__).parent / "path"
"""The folder with the package `vllm`, and with the metadata of its version for packaging tools."""
INSTALLED = "the real vllm is installed here, and is not hidden: uninstall it, or use an environment without it"


def as_vllm() -> None:
    """`import vllm` means thalweg from now on, in this process. ConfigError if the real one is installed or imported."""
    if str(PATH) in sys.path:
        return
    if _has_other_vllm() or _real(sys.path):
        raise ConfigError(f"as_vllm: {INSTALLED}")
    sys.path.insert(0, str(PATH))


def environment(of: dict[str, str]) -> dict[str, str]:
    """Environment variables of a process in which `import vllm` means thalweg. Its Python must find thalweg by itself."""
    if _real(sys.path):
        raise ConfigError(f"as-vllm: {INSTALLED}")
    rest = [p for p in of.get("PYTHONPATH", "").split(os.pathsep) if p and p != str(PATH)]
    return {**of, "PYTHONPATH": os.pathsep.join([str(PATH), *rest])}


def _has_other_vllm() -> bool:
    """Has this process imported a vllm other than ours?"""
    found = sys.modules.get("vllm")
    return found is not None and not str(getattr(found, "__file__", None) or "").startswith(str(PATH))


def _real(path: list[str]) -> bool:
    """Does the path have a vllm other than ours?"""
    found = PathFinder.find_spec("vllm", [p for p in path if Path(p or ".").resolve() != PATH.resolve()])
    return found is not None and found.origin is not None
