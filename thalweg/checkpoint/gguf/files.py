"""The file or files of a GGUF checkpoint: split models have several."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from thalweg.checkpoint.gguf.header import GGUFHeader, GGUFTensor
from thalweg.checkpoint.gguf.names import PART, SUFFIX, first_part
from thalweg.errors import CheckpointError, UnsupportedModelError

MAXPARTS = 10_000


class GGUFFiles:
    """A checkpoint: the metadata of the first file, and the tensors of all files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        first = GGUFHeader(path)
        self.metadata: Mapping[str, Any] = first.metadata
        self.headers = [first, *_others(path, first)]
        self._home: dict[str, GGUFHeader] = {}
        for header in self.headers:
            for name in header.tensors:
                if name in self._home:
                    raise CheckpointError(f"{header.path}: tensor {name!r} is in {self._home[name].path.name} too")
                self._home[name] = header
        count = self.metadata.get("split.tensors.count")
        if count is not None and count != len(self._home):
            have = f"{len(self.headers)} files hold {len(self._home)}"
            raise CheckpointError(f"{path}: split.tensors.count says {count} tensors, its {have}")
        self.tensors: Mapping[str, GGUFTensor] = {name: h.tensors[name] for name, h in self._home.items()}

    def file(self, name: str) -> Path:
        return self._home[name].path

    def read(self, name: str) -> np.ndarray:
        """As `GGUFHeader.read`."""
        return self._home[name].read(self.tensors[name])

    def forget(self, name: str) -> None:
        self._home[name].forget(self.tensors[name])


def open_files(path: str | Path) -> GGUFFiles:
    """Opens a checkpoint. The result is cached until the file changes, as configuration, tokenizer and weights are read in
    sequence. CheckpointError names file and reason."""
    path = first_part(Path(path))
    try:
        state = os.stat(path)
    except OSError as e:
        raise CheckpointError(f"{path}: cannot be read: {e.strerror or e}") from e
    return _read_files(path, state.st_mtime_ns, state.st_size, state.st_ino)


@lru_cache(maxsize=2)
def _read_files(path: Path, *state: int) -> GGUFFiles:
    return GGUFFiles(path)


def _others(path: Path, first: GGUFHeader) -> list[GGUFHeader]:
    if first.metadata.get("general.architecture") == "clip":
        raise UnsupportedModelError(f"{path}: is a projector for images or audio (mmproj), not a language model")
    count = first.metadata.get("split.count", 1)
    found = PART.fullmatch(path.name)
    if count in (0, 1):
        if found is not None and int(found["count"]) > 1:
            raise CheckpointError(f"{path}: its name is that of a part, and split.count says that it is whole; rename it")
        return []
    if not isinstance(count, int) or not 1 < count <= MAXPARTS:
        raise CheckpointError(f"{path}: split.count: must be a number of files, not {count!r:.40}")
    if found is None or int(found["count"]) != count or first.metadata.get("split.no") != 0:
        raise CheckpointError(
            f"{path}: is file {first.metadata.get('split.no')!r:.20} of {count}, and its name does not say so: give it the "
            f"name that it was made with, like {path.stem}-00001-of-{count:05}.gguf"
        )
    others = []
    for i in range(1, count):
        part = path.with_name(f"{found['stem']}-{i + 1:05}-of-{count:05}{path.name[-len(SUFFIX) :]}")
        if not part.is_file():
            raise CheckpointError(f"{part}: missing: {path.name} is the first of {count} files; download all files")
        header = GGUFHeader(part)
        if (header.metadata.get("split.no"), header.metadata.get("split.count")) != (i, count):
            raise CheckpointError(f"{part}: does not say that it is file {i} of {count} (split.no, split.count)")
        others.append(header)
    return others
