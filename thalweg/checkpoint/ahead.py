"""Reads weight files into the page cache before use, in large blocks by several threads. It serves network file systems, where
a mapped file is read page by page. The bytes are discarded."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from thalweg.config import EngineArgs

SUFFIXES = (".safetensors", ".gguf")


@contextmanager
def reading(args: EngineArgs) -> Iterator[None]:
    """Reads the files of `args.model` by the strategy of `args.reading`. eager: whole, before the caller continues. prefetch:
    while the caller loads. lazy or None: nothing. Failed reads are ignored: the loader will report them."""
    strategy, threads = args.reading
    if strategy not in ("eager", "prefetch") or args.load_format == "dummy":
        yield
        return
    pool = ThreadPoolExecutor(threads, "prefetch")
    try:
        reads = [pool.submit(_read, *part) for part in _parts(Path(args.model), args.safetensors_prefetch_block_size)]
        if strategy == "eager":
            _wait(reads)
        yield
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


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


def _wait(reads: list[Future[int]]) -> None:
    for read in reads:
        read.exception()
