"""Files that name one sampling parameter, above the backends: what a new one of its kind must touch.

Walks a parameter that exists, `min_p` by default. A number that the sampler reads is declared in thalweg/params.py. Flags,
defaults of models, dialects and the bench are derived from there.

Prints the files and their number. Run: python ci/sampling_walk.py [NAME]
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MOST = 8
"""Files that a new parameter may touch above the backends."""


def walk(name: str, root: Path = ROOT) -> list[str]:
    """Source files of the package outside backends/ that hold the parameter's name, as a name or as a flag."""
    word = re.compile(rf"\b{name}\b|\b{name.replace('_', '-')}\b")
    files = [p for kind in ("*.py", "*.js") for p in (root / "thalweg").rglob(kind)]
    found = (p.relative_to(root).as_posix() for p in files if word.search(p.read_text(encoding="utf-8")))
    return sorted(p for p in found if not p.startswith("thalweg/backends/"))


def main(name: str = "min_p") -> int:
    files = walk(name)
    print(*files, f"{name}: {len(files)} files, at most {MOST}", sep="\n")
    return len(files) > MOST


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
