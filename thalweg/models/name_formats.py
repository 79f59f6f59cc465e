"""Formats of checkpoints that names of tensors show, and config.json does not. Imports no tensor framework."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from thalweg.checkpoint.weights import open_weights
from thalweg.errors import CheckpointError

KEY = "name_format"
"""Key of a configuration for the format that was found."""
FORMATS = "NAME_FORMATS"
"""Name of a family's constant: part of names of tensors -> format."""


def mark_format(config: Mapping[str, Any], path: str | Path, family: str) -> Mapping[str, Any]:
    """The configuration, with KEY where the files at `path` show the format. Files that cannot be read show none, which the
    loader reports. family: the module of the family, which may have `FORMATS`."""
    parts: Mapping[str, str] = getattr(sys.modules.get(family), FORMATS, {})
    if not parts:
        return config
    try:
        names = open_weights(path).names
    except CheckpointError:
        return config
    found = next((form for part, form in parts.items() if any(part in name for name in names)), None)
    return config if found is None else {**config, KEY: found}
