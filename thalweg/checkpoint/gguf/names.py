"""Names of GGUF files. Imports no reader."""

from __future__ import annotations

import re
from pathlib import Path

SUFFIX = ".gguf"
PART = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)
"""Name of a file of a split model."""


def is_gguf(path: str | Path) -> bool:
    """Is this the name of a GGUF file?"""
    return Path(path).suffix.lower() == SUFFIX


def first_part(path: Path) -> Path:
    """The first file of a split model, given any of its files."""
    found = PART.fullmatch(path.name)
    if found is None or int(found["number"]) == 1:
        return path
    return path.with_name(f"{found['stem']}-00001-of-{found['count']}{path.name[-len(SUFFIX) :]}")
