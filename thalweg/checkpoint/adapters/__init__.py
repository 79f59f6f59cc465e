"""Reads adapters of linear layers from files. A reader for each format turns a folder into `AdapterWeights`, which name the
changed matrices. It knows no model: the engine checks the names and shapes of the matrices (`worker.adapters`).

A format is one file here and a line of `FORMATS`. A third-party format is an entry point of the group
`thalweg.adapter_formats`.
"""

from __future__ import annotations

from pathlib import Path

from thalweg.checkpoint.adapters.base import AdapterFormat, AdapterWeights, check_modules
from thalweg.errors import CheckpointError
from thalweg.plugins import PluginRegistry

FORMATS = PluginRegistry(
    "thalweg.adapter_formats",
    {"peft": "thalweg.checkpoint.adapters.peft:FORMAT", "gguf": "thalweg.checkpoint.adapters.gguf:FORMAT"},
)
"""Name -> an `AdapterFormat`."""


def read_adapter(path: str | Path) -> AdapterWeights:
    """The adapter in a folder or file. CheckpointError names the file and the reason: unknown format, useless tensor, wrong
    shape or value. UnsupportedModelError names the unsupported part."""
    path = Path(path)
    try:
        if not path.exists():
            raise CheckpointError(f"{path}: does not exist: give the folder (or file) of an adapter")
        form = find_format(path)
        if form is not None:
            return check_modules(path, form.read(path))
    except OSError as e:
        raise CheckpointError(f"{path!s:.300}: cannot be read: {e.strerror or e}") from e
    raise CheckpointError(f"{path}: holds no adapter of a known format ({', '.join(FORMATS.names())})")


def find_format(path: str | Path) -> AdapterFormat | None:
    """The format that reads this folder or file, found by file names. None: there is none."""
    for name in FORMATS.names():
        form: AdapterFormat = FORMATS.load(name)
        if form.holds(Path(path)):
            return form
    return None
