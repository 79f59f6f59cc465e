"""Files that clients have sent, and that batches have written: each owner's within a bound of bytes."""

from __future__ import annotations

import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from thalweg.server.errors import ApiError

PER_FILE = 512
"""Bytes that a file counts for beside its own."""


@dataclass(eq=False, slots=True)
class File:
    id: str
    owner: str
    name: str
    purpose: str
    created: int
    size: int = 0
    data: bytearray | None = field(default=None, repr=False)
    """None: it is on the disk."""

    def said(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "file",
            "bytes": self.size,
            "created_at": self.created,
            "filename": self.name,
            "purpose": self.purpose,
            "status": "processed",
            "expires_at": None,
            "status_details": None,
        }


class Files:
    """limit: bytes of one owner. 0: there are no files. directory: where they are kept while the server runs. "": in
    memory. A server that ends leaves none behind."""

    def __init__(self, limit: int, directory: str = "") -> None:
        self.limit = limit
        self._kept: dict[str, dict[str, File]] = {}
        self._held: dict[str, int] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="thalweg-files-", dir=directory) if directory and limit else None

    def add(self, owner: str, name: str, purpose: str, data: bytes = b"") -> File:
        """A new file. ApiError if it does not fit."""
        self._hold(owner, PER_FILE + len(data))
        memory = bytearray() if self._folder is None else None
        file = File(f"file-{uuid.uuid4().hex}", owner, name, purpose, int(time.time()), data=memory)
        self._kept.setdefault(owner, {})[file.id] = file
        self._write(file, data)
        return file

    def append(self, file: File, data: bytes) -> None:
        """ApiError if it does not fit. To a file that was deleted, nothing happens."""
        if file.id in self._kept.get(file.owner, {}):
            self._hold(file.owner, len(data))
            self._write(file, data)

    def get(self, owner: str, id: str, param: str = "file_id") -> File:
        """ApiError 404, for another owner's file too."""
        file = self._kept.get(owner, {}).get(id)
        if file is None:
            raise ApiError(f"{param}: there is no file {id[:80]!r}", param, 404)
        return file

    def of(self, owner: str) -> Iterator[File]:
        """The oldest first."""
        yield from self._kept.get(owner, {}).values()

    def read(self, file: File) -> bytes:
        return bytes(file.data) if file.data is not None else self._path(file).read_bytes()

    def delete(self, file: File) -> None:
        kept = self._kept[file.owner]
        del kept[file.id]
        self._held[file.owner] -= PER_FILE + file.size
        if not kept:
            del self._kept[file.owner], self._held[file.owner]
        if file.data is None:
            self._path(file).unlink(missing_ok=True)

    def _hold(self, owner: str, more: int) -> None:
        held = self._held.get(owner, 0)
        if held + more > self.limit:
            why = f"{held} of {self.limit} bytes are in use; delete files (the server's --files-store-bytes sets the limit)"
            raise ApiError(f"file: no room for {more} bytes: {why}", "file", 413)
        self._held[owner] = held + more

    def _write(self, file: File, data: bytes) -> None:
        if file.data is not None:
            file.data += data
        else:
            with self._path(file).open("ab") as out:
                out.write(data)
        file.size += len(data)

    def _path(self, file: File) -> Path:
        assert self._folder is not None
        return Path(self._folder.name) / file.id
