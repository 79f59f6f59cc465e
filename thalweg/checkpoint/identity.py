"""Identifies a model by the contents of its directory, not by its name."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from thalweg.checkpoint.safetensors import Shard

SAMPLE = 64
"""Bytes of a sample."""
SAMPLES = 4096
"""Samples of a file with unknown tensors, at even distances."""
HEADER = 1 << 20
"""Bytes from the start of such a file, read whole."""
SETTINGS = ("config.json", "params.json", "adapter_config.json")


def model_digest(path: Path) -> bytes:
    """A digest of 32 bytes over the model's configuration and samples of its weights, two per tensor. Training changes nearly
    every number of the tensors that it touches, so models with equal digests are equal. CheckpointError."""
    h = hashlib.blake2b(digest_size=32)
    folder = path.parent if path.is_file() else path
    for name in SETTINGS:
        if (folder / name).is_file():
            _add(h, name.encode(), (folder / name).read_bytes())
    for file in [path] if path.is_file() else sorted(f for f in path.iterdir() if f.suffix in (".safetensors", ".gguf")):
        for part in _tensors(file) if file.suffix == ".safetensors" else _spread(file):
            _add(h, part)
    return h.digest()


def _add(h: hashlib.blake2b, *parts: bytes) -> None:
    """Hash each part with its length, so that different lists of parts differ."""
    for part in parts:
        h.update(b"%d:" % len(part))
        h.update(part)


def _tensors(file: Path) -> Iterator[bytes]:
    shard = Shard(file)
    for name, e in sorted(shard.entries.items()):
        yield f"{name} {e.dtype} {e.shape}".encode()
        middle = (e.begin + e.end) // 2
        yield bytes(shard.data[e.begin : min(e.begin + SAMPLE, e.end)])
        yield bytes(shard.data[middle : min(middle + SAMPLE, e.end)])


def _spread(file: Path) -> Iterator[bytes]:
    size = file.stat().st_size
    with file.open("rb", buffering=0) as f:
        yield b"%d" % size
        yield os.pread(f.fileno(), min(HEADER, size), 0)
        for i in range(SAMPLES):
            yield os.pread(f.fileno(), SAMPLE, i * size // SAMPLES)
