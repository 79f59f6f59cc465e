"""A store in a folder of files: `kv_connector` "disk". It survives restarts, and engines may share it."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from thalweg.engine.control.store.base import Store
from thalweg.errors import ConfigError

FOLDER, LIMIT = "folder", "max_bytes"
OTHER_NAMES = {"shared_storage_path": FOLDER}
"""vLLM's name of an option -> its name here."""
PART = ".part"
"""Suffix of a file that is being written."""
PART_SECONDS = 3600.0
"""A file of an engine that died while it wrote is removed after this time."""
KEPT = 0.9
"""Share of the limit that remains after old files are removed, so that not every save walks the folder."""
WALKS = 16
"""The folder is walked each time that a limit / WALKS has been saved: other engines save there too."""


class DiskStore(Store):
    """One file per block, named by its key. A file appears whole or not at all. Where all files pass the limit, those that no
    engine has used for longest are removed. Nothing is synchronised to the disk: a file that a power loss damages fails its
    checksum, and is removed."""

    shared = True

    def __init__(self, folder: Path, limit: int) -> None:
        """limit: bytes of all files together."""
        self._folder, self._limit = folder, limit
        self._unwalked = 0
        self._held = self._remove_oldest()
        """Bytes of all files when the folder was last walked, and of those saved since then."""

    @classmethod
    def check(cls, options: Mapping[str, Any]) -> list[str]:
        settings = {OTHER_NAMES.get(name, name): value for name, value in options.items()}
        unknown = settings.keys() - {FOLDER, LIMIT}
        problems = [f"{name!r:.60} is not supported; this store has {FOLDER} and {LIMIT}" for name in unknown]
        folder, limit = settings.get(FOLDER), settings.get(LIMIT)
        if not isinstance(folder, str) or not os.path.isabs(folder):
            problems.append(f"{FOLDER}: must be an absolute path, not {folder!r:.60}")
        if type(limit) is not int or limit < 1:
            problems.append(f"{LIMIT}: must be a number of bytes above 0, not {limit!r:.40}")
        return problems

    @classmethod
    def open(cls, options: Mapping[str, Any]) -> Self:
        if problems := cls.check(options):
            raise ConfigError(*problems)
        settings = {OTHER_NAMES.get(name, name): value for name, value in options.items()}
        folder = Path(settings[FOLDER])
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with tempfile.TemporaryFile(dir=folder):
                return cls(folder, settings[LIMIT])
        except OSError as e:
            raise ConfigError(f"kv_transfer_config: {FOLDER}: nothing can be written to {folder}: {e.strerror or e}") from None

    def lookup(self, keys: Sequence[bytes]) -> list[bool]:
        return [self._path(key).exists() for key in keys]

    def load(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """A file that cannot be read counts as missing."""
        found: list[bytes | None] = []
        for key in keys:
            try:
                found.append(self._path(key).read_bytes())
            except OSError:
                found.append(None)
        for key in reversed(keys):  # a prefix loses its tail before its head
            with contextlib.suppress(OSError):
                os.utime(self._path(key))
        return found

    def save(self, keys: Sequence[bytes], blocks: Sequence[bytes]) -> None:
        for key, block in zip(keys, blocks, strict=True):
            path = self._path(key)
            if len(block) > self._limit or path.exists():
                continue
            self._write(path, block)
            self._held += len(block)
            self._unwalked += len(block)
        if self._held > self._limit or self._unwalked * WALKS > self._limit:
            self._held, self._unwalked = self._remove_oldest(), 0

    def discard(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            self._path(key).unlink(missing_ok=True)

    def _write(self, path: Path, block: bytes) -> None:
        path.parent.mkdir(exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=PART, delete=False) as file:
            try:
                file.write(block)
                file.flush()
                os.replace(file.name, path)
            except OSError:  # a full disk keeps no part of a block
                Path(file.name).unlink(missing_ok=True)
                raise

    def _remove_oldest(self) -> int:
        """Remove files until the rest is within the limit. Returns the bytes of the rest."""
        files = sorted(self._walk())
        held = sum(size for _, size, _ in files)
        if held <= self._limit:
            return held
        for _, size, path in files:
            if held <= KEPT * self._limit:
                break
            path.unlink(missing_ok=True)
            held -= size
        return held

    def _walk(self) -> Iterator[tuple[int, int, Path]]:
        """(time of last use in ns, bytes, path) of each block."""
        for path in self._folder.glob("??/*"):
            with contextlib.suppress(OSError):  # another engine has removed it
                stat = path.stat()
                if path.suffix != PART:
                    yield stat.st_mtime_ns, stat.st_size, path
                elif time.time() - stat.st_mtime > PART_SECONDS:
                    path.unlink(missing_ok=True)

    def _path(self, key: bytes) -> Path:
        name = key.hex()
        return self._folder / name[:2] / name[2:]
