"""Run a script of this checkout with the Python and the packages that are there, installing nothing.

    python3 ci/gpu/here.py SCRIPT [ARGUMENTS]

Platforms are found by what packages say of themselves, so a checkout that is not installed has none. This writes what an
installation would say into a folder of its own (build/here), and starts the script with that folder and the checkout on
PYTHONPATH. What is missing is told in one sentence, before anything runs.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]
NEEDED = ("torch", "numpy", "msgspec", "orjson", "tokenizers", "safetensors", "huggingface_hub", "jinja2", "tqdm", "pytest")
"""To load a model, run it offline and test it; no server."""
GROUPS = ("thalweg.platforms", "pytest11")


def missing() -> list[str]:
    return [name for name in NEEDED if find_spec(name) is None]


def metadata(folder: Path, project: Path = ROOT / "pyproject.toml") -> Path:
    """`folder`/thalweg-0.dist-info, as an installer would write it: the name, and the entry points of GROUPS."""
    import tomllib  # here, as older versions have none and are told so in words

    said = tomllib.loads(project.read_text())["project"]
    info = folder / "thalweg-0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: thalweg\nVersion: 0\n")
    lines = []
    for group in GROUPS:
        lines += [f"[{group}]", *(f"{name} = {target}" for name, target in said["entry-points"][group].items()), ""]
    (info / "entry_points.txt").write_text("\n".join(lines))
    return folder


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    if sys.version_info < (3, 11):  # noqa: UP036 - whatever python3 is, it is told
        sys.exit(f"here: {sys.executable} is older than 3.11; name a newer one: PYTHON=python3.12 ci/gpu/run --here")
    absent = missing()
    if absent:
        sys.exit(f"here: {sys.executable} has no {', '.join(absent)}; install them, or put them on PYTHONPATH")
    folders = [str(ROOT), str(metadata(ROOT / "build" / "here")), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, folders))
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])


if __name__ == "__main__":
    main()
