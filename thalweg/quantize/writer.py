"""A checkpoint written shard by shard into a temporary folder, which is renamed when complete."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from thalweg.checkpoint.safetensors import INDEX, SINGLE
from thalweg.errors import ConfigError

COPIED = ("*.txt", "*.model", "*.jinja", "*.json")
"""Copied files of the source checkpoint: tokenizers, templates, settings."""
LEFT = ("config.json", "*.index.json")


class Writer:
    """out: a path where nothing is yet. ConfigError if there is something."""

    def __init__(self, out: Path, shard_bytes: int) -> None:
        if out.exists():
            raise ConfigError(f"OUT: {out} exists already; choose another name, or remove it")
        if not out.absolute().parent.is_dir():
            raise ConfigError(f"OUT: there is no directory {out.absolute().parent}")
        self._out, self._most = out, shard_bytes
        self._folder = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.absolute().parent))
        self._held: dict[str, Tensor] = {}
        self._bytes = self.total = 0
        self._shards: list[list[str]] = []

    def add(self, tensors: Mapping[str, Tensor]) -> None:
        """The tensors of one layer stay in one shard."""
        size = sum(t.nbytes for t in tensors.values())
        if self._held and self._bytes + size > self._most:
            self._flush()
        self._held |= {name: t.contiguous() for name, t in tensors.items()}
        self._bytes += size
        self.total += size

    def _flush(self) -> None:
        self._shards.append(sorted(self._held))
        save_file(self._held, self._folder / f"{len(self._shards)}.safetensors", {"format": "pt"})
        self._held, self._bytes = {}, 0

    def finish(self, config: Mapping[str, Any], source: Path, report: Mapping[str, Any], report_name: str) -> None:
        """Name the shards, copy the other files of `source`, and give the folder its name."""
        self._flush()
        count = len(self._shards)
        names = [SINGLE] if count == 1 else [f"model-{i + 1:05}-of-{count:05}.safetensors" for i in range(count)]
        for i, name in enumerate(names):
            (self._folder / f"{i + 1}.safetensors").rename(self._folder / name)
        if count > 1:
            where = {tensor: names[i] for i, shard in enumerate(self._shards) for tensor in shard}
            _write(self._folder / INDEX, {"metadata": {"total_size": self.total}, "weight_map": dict(sorted(where.items()))})
        for file in sorted({f for pattern in COPIED for f in source.glob(pattern)}):
            if file.is_file() and not any(file.match(pattern) for pattern in LEFT):
                shutil.copyfile(file, self._folder / file.name)
        _write(self._folder / "config.json", config)
        _write(self._folder / report_name, report)
        self._folder.chmod(0o755)
        self._folder.rename(self._out)

    def abandon(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


def _write(file: Path, content: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
