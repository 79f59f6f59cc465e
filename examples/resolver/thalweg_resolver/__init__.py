"""The adapter of a name is the folder that `aliases.json` of a root names."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path


def resolve(base: str, name: str, roots: Sequence[str]) -> str | None:
    """The first root that knows the name decides. The files are read again for each unknown name."""
    for root in map(Path, roots):
        if (file := root / "aliases.json").is_file():
            folder = json.loads(file.read_text(encoding="utf-8")).get(name)
            if folder is not None:
                return str(root / folder)
    return None
