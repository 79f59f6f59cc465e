"""Adapters of linear layers in files. A reader for each format turns a folder into `AdapterWeights`, which name the matrices
that change. Knows no model: whether every matrix is there, and of that shape, is judged by the engine (`worker.adapters`).

A format is one file here and a line of `FORMATS`. One of another package is named by an entry point of the group
`thalweg.adapter_formats`.
"""

from __future__ import annotations

from pathlib import Path

from thalweg.checkpoint.adapters.base import AdapterFormat, AdapterWeights, check_modules
from thalweg.errors import CheckpointError
from thalweg.plugins import PluginRegistry

FORMATS = PluginRegistry("thalweg.adapter_formats", {"peft": "thalweg.checkpoint.adapters.peft:FORMAT"})
"""Name -> an `AdapterFormat`."""


def read_adapter(path: str | Path) -> AdapterWeights:
    """The adapter in a folder or file. CheckpointError names the file and the reason: no format reads it, a tensor is of no
    use, a shape or a value is wrong. UnsupportedModelError names the part of it that is not served."""
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
    """The format that reads this folder or file, judged by names of files. None: none does."""
    for name in FORMATS.names():
        form: AdapterFormat = FORMATS.load(name)
        if form.holds(Path(path)):
            return form
    return None
