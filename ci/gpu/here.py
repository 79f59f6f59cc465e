"""Run a script of this checkout with the Python and the packages that are there, installing nothing there.

    python3 ci/gpu/here.py SCRIPT [--pack DIR] [--wheels DIR] [ARGUMENTS]

Platforms are found by what packages say of themselves, so a checkout that is not installed has none. This writes what an
installation would say into a folder of its own (build/here), and starts the script with that folder and the checkout on
PYTHONPATH. What is missing is told in one sentence, before anything runs.
--wheels: wheels that were carried here (ci/gpu/wheels.txt says which and how to get them) are unpacked beside it, for this run.
--pack: a folder of ci/gpu/pack, whose wheels are. The script gets the option too, for the rest of it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]
NEEDED = ("torch", "numpy", "msgspec", "orjson", "tokenizers", "safetensors", "huggingface_hub", "jinja2", "tqdm", "pytest",
          "hypothesis")  # fmt: skip
"""To load a model, run it offline and test it; no server. The kit's tests load a conftest that imports hypothesis."""
WANTED = {"xdist": "pytest-xdist, so the kit runs in one process", "pytest_timeout": "pytest-timeout, so a test may hang"}
"""Module -> what its package is called, and what follows where it is missing."""
GROUPS = ("thalweg.platforms", "pytest11")


def missing() -> list[str]:
    return [name for name in NEEDED if find_spec(name) is None]


def metadata(folder: Path, project: Path = ROOT / "pyproject.toml") -> Path:
    """`folder`/thalweg-0.dist-info, as an installer would write it: the name, and the entry points of GROUPS."""
    import tomllib  # here, as older versions have none and are told so in words

    content = tomllib.loads(project.read_text())["project"]
    info = folder / "thalweg-0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: thalweg\nVersion: 0\n")
    lines = []
    for group in GROUPS:
        lines += [f"[{group}]", *(f"{name} = {target}" for name, target in content["entry-points"][group].items()), ""]
    (info / "entry_points.txt").write_text("\n".join(lines))
    return folder


def unpacked(wheels: Path, folder: Path) -> Path:
    """The wheels, unpacked into `folder` by this Python's pip, which refuses those of other Pythons and machines. Those that
    are there already are left."""
    files = sorted(wheels.glob("*.whl"))
    if not files:
        sys.exit(f"here: --wheels: {wheels} holds no wheels; ci/gpu/wheels.txt says how to get them")
    stamp, content = folder / "wheels.txt", "\n".join(f"{f.name} {f.stat().st_size}" for f in files)
    if stamp.is_file() and stamp.read_text() == content:
        return folder
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile", "--no-cache-dir",
           "--upgrade", "--disable-pip-version-check", "--target", str(folder), *map(str, files)]  # fmt: skip
    done = subprocess.run(pip, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"here: --wheels: {done.stderr.strip() or done.stdout.strip()}")
    stamp.write_text(content)
    return folder


def taken(words: Iterable[str]) -> tuple[Path | None, list[str]]:
    """(the folder of --wheels, or that of --pack; the other words, --pack among them). SystemExit for a folder that is not
    there."""
    wheels, rest, words = None, [], iter(words)
    for word in words:
        name, equals, value = word.partition("=")
        if name not in ("--wheels", "--pack"):
            rest.append(word)
            continue
        given = value if equals else next(words, "")
        if not given or not Path(given).is_dir():
            sys.exit(f"here: {name}: there is no folder {given!r}")
        folder = Path(given).resolve()
        if name == "--wheels":
            wheels = folder
            continue
        rest.append(f"--pack={folder}")
        if wheels is None and any((folder / "wheels").glob("*.whl")):
            wheels = folder / "wheels"
    return wheels, rest


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    if sys.version_info < (3, 11):  # noqa: UP036 - whatever python3 is, it is told
        sys.exit(f"here: {sys.executable} is older than 3.11; name a newer one: PYTHON=python3.12 ci/gpu/run --here")
    wheels, rest = taken(sys.argv[1:])
    result = ROOT / "build" / "here"
    folders = [str(ROOT), str(metadata(result))]
    if wheels:
        site = unpacked(wheels, result / f"site-{sys.implementation.cache_tag}")
        folders.append(str(site))
        sys.path.insert(0, str(site))
    absent = missing()
    if absent:
        sys.exit(
            f"here: {sys.executable} has no {', '.join(absent)}; install them, put them on PYTHONPATH, or carry wheels "
            "(--wheels DIR; ci/gpu/wheels.txt says how)"
        )
    for module, words in WANTED.items():
        if find_spec(module) is None:
            print(f"here: there is no {words}", file=sys.stderr)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*folders, os.environ.get("PYTHONPATH", "")]))
    os.execv(sys.executable, [sys.executable, *rest])


if __name__ == "__main__":
    main()
