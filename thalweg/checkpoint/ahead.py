"""Reads weight files into the page cache before use, in large blocks by several threads. It serves network file systems, where
a mapped file is read page by page. The bytes are discarded."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from thalweg.config import EngineArgs

SUFFIXES = (".safetensors", ".gguf")


class FileReaders:
    """Threads that read parts of files in order. They end with the process: an unfinished read delays no exit.

    parts: (file, first byte, bytes)."""

    def __init__(self, parts: Iterator[tuple[Path, int, int]], threads: int) -> None:
        self._parts, self._lock, self._stopped = parts, threading.Lock(), threading.Event()
        self._threads = [threading.Thread(target=self._run, name="prefetch", daemon=True) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        while not self._stopped.is_set():
            with suppress(OSError):  # the loader reports it
                with self._lock:
                    part = next(self._parts, None)
                if part is None:
                    return
                _read(*part)

    def wait(self) -> None:
        for thread in self._threads:
            thread.join()

    def stop(self) -> None:
        """After the current block of each thread."""
        self._stopped.set()
        self.wait()


_begun: dict[Path, FileReaders] = {}
"""Reads that have begun before `reading`, by model."""


def begin(args: EngineArgs) -> None:
    """Begin the reads of `reading` in a process that will soon load `args.model`, while it imports other things."""
    path = Path(args.model)
    if _reads(args) and path not in _begun:
        _begun[path] = _start(args)


def drop() -> None:
    """Stop the reads that have begun for models that are not loaded after all."""
    for path in list(_begun):
        _begun.pop(path).stop()


def _reads(args: EngineArgs) -> bool:
    return args.reading[0] in ("eager", "prefetch") and args.load_format != "dummy"


def _start(args: EngineArgs) -> FileReaders:
    return FileReaders(_parts(Path(args.model), args.safetensors_prefetch_block_size), args.reading[1])


@contextmanager
def reading(args: EngineArgs) -> Iterator[None]:
    """Reads the files of `args.model` by the strategy of `args.reading`. eager: whole, before the caller continues. prefetch:
    while the caller loads. lazy or None: nothing. Reads that `begin` started continue. Failed reads are ignored: the loader
    will report them."""
    if not _reads(args):
        yield
        return
    readers = _begun.pop(Path(args.model), None) or _start(args)
    try:
        if args.reading[0] == "eager":
            readers.wait()
        yield
    finally:
        readers.stop()


def _parts(model: Path, block: int) -> Iterator[tuple[Path, int, int]]:
    """(file, first byte, bytes) of all blocks, in the order in which weights are read."""
    files = [model] if model.is_file() else sorted(f for f in model.iterdir() if f.suffix in SUFFIXES)
    for file in files:
        for at in range(0, file.stat().st_size, block):
            yield file, at, block


def _read(file: Path, at: int, count: int) -> int:
    """Number of bytes read."""
    with file.open("rb", buffering=0) as f:
        return len(os.pread(f.fileno(), count, at))
