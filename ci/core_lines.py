"""Lines of the core: the rooms that a maintainer has to know, whatever is added to the open lists. Prints a table.

Bodies of ops (`hal/ops`), the conformance kit (`hal/testing`) and everything of which there are dozens (families, formats,
backends, dialects, media) do not count. Run: python ci/core_lines.py [REPOSITORY]
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
WHOLE = ("hal/parts", "engine/control", "engine/client", "engine/worker", "engine/executor", "engine/planning", "engine/ipc",
         "models/spec", "models/layers")  # fmt: skip
"""Rooms with all they contain."""
TOP = ("hal", "engine", "models")
"""Rooms of which only the files at the top count."""


def count_lines(root: Path) -> dict[str, int]:
    """Room -> lines of its Python files."""
    package = root / "thalweg"
    files = {room: [*(package / room).glob("*.py")] for room in TOP} | {
        room: [*(package / room).rglob("*.py")] for room in WHOLE
    }
    return {room: sum(len(f.read_text(encoding="utf-8").splitlines()) for f in found) for room, found in files.items()}


def main() -> int:
    lines = count_lines(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
    for room, n in lines.items():
        print(f"{room:16} {n:6}")
    print(f"core_lines: {sum(lines.values())} lines")
    return 0


if __name__ == "__main__":
    sys.exit(main())
