"""Bytes per second of reading a checkpoint that is not in the page cache: plain reads of its files one after the other, plain
reads of all files at once, and the mapped reader of `checkpoint.safetensors`, which copies every tensor once. The files are
fresh random ones, and are dropped from the cache before every run. Prints medians, their range, and ratios.

    python benchmarks/reading.py [--mib 512] [--shards 4] [--runs 3] [--dir DIR]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from thalweg.checkpoint.safetensors import INDEX, open_checkpoint

TENSOR = 4 << 20


def write(folder: Path, shards: int, size: int) -> None:
    """Tensors of 4 MiB, in files of `size` bytes each."""
    from safetensors.numpy import save_file

    rng, where = np.random.default_rng(0), {}
    for i in range(shards):
        name = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        tensors = {f"t{i:03}.{j:05}": rng.integers(0, 255, (1024, TENSOR // 1024), np.uint8) for j in range(size // TENSOR)}
        save_file(tensors, folder / name)
        where |= dict.fromkeys(tensors, name)
    (folder / INDEX).write_text(json.dumps({"weight_map": where}))
    for file in folder.iterdir():
        with file.open("rb") as f:
            os.fsync(f.fileno())


def drop(folder: Path) -> None:
    for file in folder.iterdir():
        with file.open("rb") as f:
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def plain(folder: Path) -> int:
    return sum(map(_read, sorted(folder.glob("*.safetensors"))))


def together(folder: Path) -> int:
    files = sorted(folder.glob("*.safetensors"))
    with ThreadPoolExecutor(len(files)) as pool:
        return sum(pool.map(_read, files))


def _read(file: Path) -> int:
    buffer, total = bytearray(8 << 20), 0
    with file.open("rb", buffering=0) as f:
        while n := f.readinto(buffer):
            total += n
    return total


def mapped(folder: Path) -> int:
    """As the loader does: every tensor copied once, and forgotten."""
    checkpoint, total = open_checkpoint(folder), 0
    for name in checkpoint.names:
        total += np.array(checkpoint.read(name)).nbytes
        checkpoint.forget(name)
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--dir", type=Path)
    args = parser.parse_args()
    ways = {"plain": plain, "together": together, "mapped": mapped}
    rates: dict[str, list[float]] = {way: [] for way in ways}
    with tempfile.TemporaryDirectory(dir=args.dir) as name:
        folder = Path(name)
        write(folder, args.shards, (args.mib << 20) // args.shards)
        for _ in range(args.runs):
            for way, run in ways.items():
                drop(folder)
                start = time.perf_counter()
                rates[way].append(run(folder) / (time.perf_counter() - start))
    base = statistics.median(rates["plain"])
    for way, found in rates.items():
        middle = statistics.median(found)
        spread = f"{min(found) / 1e6:.0f} to {max(found) / 1e6:.0f}"
        print(f"{way:9} {middle / 1e6:6.0f} MB/s  {middle / base:5.2f} x plain  ({spread})")


if __name__ == "__main__":
    main()
