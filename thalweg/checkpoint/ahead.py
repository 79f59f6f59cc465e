"""Weight files brought into the page cache before they are needed, in long reads by several threads. For network file
systems, where a mapped file's pages come one by one. Reads bytes and keeps none."""

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
    """Reads the files of `args.model` as `args.reading` says. eager: whole, before the caller goes on.
    prefetch: while the caller loads. lazy or None: nothing. A read that fails is left to whoever needs the bytes."""
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
    """(file, first byte, bytes) of everything, in the order in which weights are read."""
    files = [model] if model.is_file() else sorted(f for f in model.iterdir() if f.suffix in SUFFIXES)
    for file in files:
        for at in range(0, file.stat().st_size, block):
            yield file, at, block


def _read(file: Path, at: int, count: int) -> int:
    """How many bytes there were."""
    with file.open("rb", buffering=0) as f:
        return len(os.pread(f.fileno(), count, at))


def _wait(reads: list[Future[int]]) -> None:
    for read in reads:
        read.exception()
