"""A store of KV blocks in a folder of files, for engines of one machine or of a shared file system."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from thalweg.engine.control.store.base import Store
from thalweg.errors import ConfigError


class FolderStore(Store):
    """One file per block, named by its key. A file appears whole or not at all, so several engines may read and write at
    once. Where the files of this engine's saves pass `max_bytes`, it removes those that nobody used for longest."""

    shared = True

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder, self._limit = folder, max_bytes
        self._held = sum(file.stat().st_size for file in self._files())

    @classmethod
    def check(cls, options: Mapping[str, Any]) -> list[str]:
        problems = [
            f"{name!r:.60} is not known; known are folder and max_bytes" for name in options.keys() - {"folder", "max_bytes"}
        ]
        folder, limit = options.get("folder"), options.get("max_bytes")
        if not isinstance(folder, str) or not os.path.isabs(folder):
            problems.append(f"folder: must be an absolute path, not {folder!r:.60}")
        if type(limit) is not int or limit < 1:
            problems.append(f"max_bytes: must be a number of bytes above 0, not {limit!r:.60}")
        return problems

    @classmethod
    def open(cls, options: Mapping[str, Any]) -> Self:
        folder = Path(options["folder"])
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            return cls(folder, options["max_bytes"])
        except OSError as e:
            raise ConfigError(f"kv_transfer_config: folder: {folder}: {e.strerror or e}") from e

    def lookup(self, keys: Sequence[bytes]) -> list[bool]:
        return [self._path(key).exists() for key in keys]

    def load(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self._read(self._path(key)) for key in keys]

    def save(self, keys: Sequence[bytes], blocks: Sequence[bytes]) -> None:
        for key, block in zip(keys, blocks, strict=True):
            path = self._path(key)
            if path.exists():
                continue
            path.parent.mkdir(exist_ok=True)
            f = tempfile.NamedTemporaryFile(dir=self._folder, delete=False)  # noqa: SIM115  (closed below)
            try:
                with f:
                    f.write(block)
                os.replace(f.name, path)
            except OSError:  # a full disk keeps no part of a block
                Path(f.name).unlink(missing_ok=True)
                raise
            self._held += len(block)
        if self._held > self._limit:
            self._remove_oldest()

    def _remove_oldest(self) -> None:
        """Down to nine tenths, so that not every save walks the folder."""
        files = [(file.stat().st_mtime_ns, file.stat().st_size, file) for file in self._files()]
        self._held = sum(size for _, size, _ in files)
        for _, size, file in sorted(files):
            if self._held <= 0.9 * self._limit:
                break
            file.unlink(missing_ok=True)
            self._held -= size

    def _read(self, path: Path) -> bytes | None:
        try:
            block = path.read_bytes()
            os.utime(path)  # used just now
        except FileNotFoundError:
            return None
        return block

    def _files(self) -> list[Path]:
        return list(self._folder.glob("??/*"))

    def _path(self, key: bytes) -> Path:
        name = key.hex()
        return self._folder / name[:2] / name[2:]
