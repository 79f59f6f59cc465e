"""An example of this repository, installed as a package of its own. For tests of examples/."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path


def installed(example: Path, folder: Path) -> dict[str, str]:
    """Variables of a process that has the example installed, under `folder`. It is installed from a copy, as building leaves
    files behind."""
    shutil.copytree(example, folder / "source", ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
    options = ["--quiet", "--no-index", "--no-build-isolation", "--no-deps", "--target", str(folder / "site")]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(folder / "source")], check=True)
    path = os.pathsep.join([str(folder / "site"), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
