"""Files that clients have sent, and that batches have written: each owner's within a bound of bytes. One copy of each."""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
import time
import uuid
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thalweg.server.errors import ApiError

if TYPE_CHECKING:
    from thalweg.server.batches.check import BatchCheckResult

log = logging.getLogger(__name__)

PER_FILE = 512
"""Bytes counted for a file besides its content."""
PIECE = 1 << 18
"""Bytes of a file read at once."""


@dataclass(eq=False, slots=True)
class File:
    id: str
    owner: str
    name: str
    purpose: str
    created: int
    size: int = 0
    """Bytes that can be read."""
    reserved: int = 0
    """Bytes counted against the owner's limit: `size`, and what is being written to the disk."""
    data: bytearray | None = field(default=None, repr=False)
    """None: it is on the disk."""
    users: int = 0
    """Batches and downloads that read it."""
    deleted: bool = False
    checked: dict[str, BatchCheckResult] = field(default_factory=dict, repr=False)
    """Endpoint -> whether the lines are its requests."""

    def describe(self) -> dict[str, Any]:
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


class FileStore:
    """limit: bytes of one owner. 0: there are no files. directory: where they are kept while the server runs. "": in
    memory. A server that ends leaves none behind. For one event loop, except `piece`."""

    def __init__(self, limit: int, directory: str = "") -> None:
        self.limit = limit
        self._kept: dict[str, dict[str, File]] = {}
        self._held: dict[str, int] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="thalweg-files-", dir=directory) if directory and limit else None
        self._disk = ThreadPoolExecutor(1, "files")

    def check(self, owner: str, more: int) -> None:
        """ApiError 413 if the owner has no room for so many bytes more."""
        held = self._held.get(owner, 0)
        if held + more > self.limit:
            why = f"{held} of {self.limit} bytes are in use; delete files (the server's --files-store-bytes sets the limit)"
            raise ApiError(f"file: no room for {more} bytes: {why}", "file", 413)

    async def add(self, owner: str, name: str, purpose: str, data: bytearray | None = None) -> File:
        """A new file of these bytes, which become its own. ApiError if it does not fit, or the disk is full."""
        data = bytearray() if data is None else data
        self._hold(owner, PER_FILE + len(data))
        file = File(f"file-{uuid.uuid4().hex}", owner, name, purpose, int(time.time()), len(data), len(data))
        if self._folder is None:
            file.data = data
        else:
            try:
                await self._on_disk(partial(self._write, file, data))
            except BaseException:
                self._release(file)
                raise
        self._kept.setdefault(owner, {})[file.id] = file
        return file

    async def append(self, file: File, data: bytes) -> None:
        """ApiError if it does not fit, or the disk is full: the file keeps what it had. To a file that was deleted, nothing
        happens. `size` grows once the bytes can be read, also where the caller is cancelled meanwhile: a download sends no
        more than the disk has."""
        if file.deleted:
            return
        self._hold(file.owner, len(data))
        file.reserved += len(data)
        if file.data is not None:
            file.data += data
            file.size += len(data)
            return
        written = asyncio.get_running_loop().run_in_executor(self._disk, partial(self._write, file, data))
        written.add_done_callback(partial(self._settle, file, len(data)))
        await asyncio.shield(written)

    def _settle(self, file: File, more: int, written: asyncio.Future[None]) -> None:
        """Bytes that were reserved can be read, or were not written and are free again."""
        if not written.cancelled() and written.exception() is None:
            file.size += more
        elif file.users or not file.deleted:  # else its room was released as a whole
            file.reserved -= more
            self._held[file.owner] -= more

    def get(self, owner: str, id: str, param: str = "file_id") -> File:
        """ApiError 404, for another owner's file too."""
        file = self._kept.get(owner, {}).get(id)
        if file is None:
            raise ApiError(f"{param}: there is no file {id[:80]!r}", param, 404)
        return file

    def of(self, owner: str) -> Iterator[File]:
        """The oldest first."""
        yield from self._kept.get(owner, {}).values()

    def piece(self, file: File, start: int, end: int) -> bytes:
        """Bytes from a position up to another. Thread-safe. Fewer, where the file ends before."""
        if file.data is not None:
            return bytes(file.data[start:end])
        descriptor = os.open(self._path(file), os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(descriptor, end - start, start)
        finally:
            os.close(descriptor)

    async def read(self, file: File, start: int, end: int) -> bytes:
        """`piece`, off the event loop for a long one."""
        if file.data is not None and end - start <= PIECE:
            return self.piece(file, start, end)
        return await asyncio.to_thread(self.piece, file, start, end)

    async def pieces(self, file: File, size: int) -> AsyncGenerator[bytes, None]:
        """The first `size` bytes, a piece at a time. The caller uses the file meanwhile (`use`)."""
        for at in range(0, size, PIECE):
            yield await self.read(file, at, min(at + PIECE, size))

    def use(self, file: File) -> None:
        """A file in use keeps its bytes, and its owner's room, when it is deleted. Once for each `leave`."""
        file.users += 1

    def leave(self, file: File) -> None:
        file.users -= 1
        if file.deleted and not file.users:
            self._release(file)

    def delete(self, file: File) -> None:
        """Remove it from lists. Its bytes are released after the last reader."""
        kept = self._kept[file.owner]
        del kept[file.id]
        if not kept:
            del self._kept[file.owner]
        file.deleted = True
        if not file.users:
            self._release(file)

    def _release(self, file: File) -> None:
        self._held[file.owner] -= PER_FILE + file.reserved
        if not self._held[file.owner]:
            del self._held[file.owner]
        if self._folder is None:
            file.data = bytearray()
        else:
            self._disk.submit(self._path(file).unlink, missing_ok=True)

    def _hold(self, owner: str, more: int) -> None:
        self.check(owner, more)
        self._held[owner] = self._held.get(owner, 0) + more

    async def _on_disk(self, work: partial[None]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._disk, work)

    def _write(self, file: File, data: bytes | bytearray) -> None:
        """All of it or, with ApiError, nothing: a line that was cut short would precede what is written next."""
        try:
            with self._path(file).open("ab", buffering=0) as out:
                end, rest = out.tell(), memoryview(data)
                try:
                    while rest:
                        rest = rest[out.write(rest) :]
                except OSError:
                    out.truncate(end)
                    raise
        except OSError as e:
            log.error("files: a write of %d bytes failed: %s", len(data), e)
            raise ApiError(f"file: the server cannot write files: {e.strerror} (--files-directory)", "file", 507) from None

    def _path(self, file: File) -> Path:
        assert self._folder is not None
        return Path(self._folder.name) / file.id
