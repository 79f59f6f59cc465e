"""A checkpoint with new weights, written next to the one in use: tensors that a trainer sends, and the others of the old one.

Nothing refers to the new checkpoint before `complete`, so an update that ends early changes nothing.
"""

from __future__ import annotations

import json
import math
import shutil
import struct
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from thalweg.checkpoint import gguf
from thalweg.checkpoint.native import is_native
from thalweg.checkpoint.safetensors import INDEX, STORED, open_checkpoint
from thalweg.errors import RequestError

FORMAT_NAMES = {ours: name for name, (ours, _) in STORED.items()}
"""Name of a dtype -> its name in safetensors files."""
PREFIX = "thalweg-weights-"
MOST_NAMED = 5


class TensorSpec(NamedTuple):
    """A tensor to be received. dtype: as torch names it."""

    name: str
    dtype: str
    shape: tuple[int, ...]


def encode_header(tensors: Sequence[TensorSpec], sizes: Mapping[str, int]) -> bytes:
    """The header of a safetensors file with these tensors, in order. sizes: bytes of an element, by dtype."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, dtype, shape in tensors:
        end = at + math.prod(shape) * sizes[dtype]
        header[name] = {"dtype": FORMAT_NAMES[dtype], "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


class StagedCheckpoint:
    """The next checkpoint of a model. Make one per update, and `discard` it if the update ends early."""

    def __init__(self, source: Path, parent: Path) -> None:
        """source: the checkpoint in use. parent: gets the folder. RequestError if the format cannot be updated."""
        if gguf.is_gguf(source) or is_native(source):
            raise RequestError("weights of GGUF files and of Mistral's format are not updated; serve a safetensors checkpoint")
        self._source = source
        self._old = open_checkpoint(source)
        self._shards: list[str] = []
        self._homes: dict[str, str] = {}
        self._tied = bool(json.loads((source / "config.json").read_bytes()).get("tie_word_embeddings"))
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))

    def check(self, names: Sequence[str], dtypes: Sequence[str], shapes: Sequence[Sequence[int]]) -> list[TensorSpec]:
        """The tensors of a batch. RequestError names a tensor that does not fit the checkpoint."""
        if not names or not len(names) == len(dtypes) == len(shapes):
            raise RequestError("update_info: names, dtype_names and shapes must be lists of one length", "update_info")
        tensors = [TensorSpec(n, d.removeprefix("torch."), tuple(s)) for n, d, s in zip(names, dtypes, shapes, strict=True)]
        unknown = [t.name for t in tensors if t.name not in self._old and not self._is_tied_head(t.name)]
        if unknown:
            more = f" and {len(unknown) - MOST_NAMED} more" if len(unknown) > MOST_NAMED else ""
            words = f"the checkpoint has no {', '.join(unknown[:MOST_NAMED])}{more}; names are those of its files"
            raise RequestError(f"update_info.names: {words}", "update_info.names")
        seen = set(self._homes)
        for t in tensors:
            if t.name in seen:
                raise RequestError(f"update_info.names: {t.name} was sent already in this update", "update_info.names")
            seen.add(t.name)
            if t.name in self._old and (t.dtype, t.shape) != (there := self._old.entry(t.name)):
                raise RequestError(
                    f"update_info: {t.name} is {t.dtype} {list(t.shape)}, and the checkpoint has {there[0]} {list(there[1])}",
                    "update_info",
                )
            if t.name not in self._old and (t.dtype, t.shape) not in map(self._old.entry, self._old.names):
                words = f"{t.name} is {t.dtype} {list(t.shape)}, and the checkpoint has no such embedding"
                raise RequestError(f"update_info: {words}", "update_info")
            if t.dtype not in FORMAT_NAMES:
                raise RequestError(f"update_info.dtype_names: {t.dtype!r:.40} is unknown", "update_info.dtype_names")
        return tensors

    def _is_tied_head(self, name: str) -> bool:
        """Trainers send the output matrix although it is the embedding, and checkpoints leave it out."""
        return self._tied and name == "lm_head.weight"

    def next_shard(self) -> Path:
        """The file for the next batch."""
        return self.folder / f"update-{len(self._shards) + 1:05}.safetensors"

    def add(self, tensors: Sequence[TensorSpec]) -> None:
        """The file of `next_shard` holds these."""
        file = self.next_shard().name
        self._shards.append(file)
        self._homes |= {t.name: file for t in tensors}

    def complete(self) -> Path:
        """Write the tensors that were not sent, the index and the other files. Returns the folder. RequestError if nothing was
        sent. It reads and writes whole files: call it on a thread."""
        if not self._homes:
            raise RequestError("no weights were sent since start_weight_update; call update_weights first")
        rest = [TensorSpec(name, *self._old.entry(name)) for name in self._old.names if name not in self._homes]
        if rest:
            file = "unchanged.safetensors"
            spans = [self._old.read(t.name) for t in rest]
            sizes = {t.dtype: data.itemsize for t, data in zip(rest, spans, strict=True)}
            with (self.folder / file).open("wb") as f:
                f.write(encode_header(rest, sizes))
                for data in spans:
                    f.write(data.reshape(-1).view(np.uint8).data)
            self._homes |= {t.name: file for t in rest}
        (self.folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": self._homes}))
        for other in self._source.iterdir():
            if other.is_file() and other.suffix != ".safetensors" and other.name != INDEX:
                shutil.copyfile(other, self.folder / other.name)
        return self.folder

    def discard(self) -> None:
        """Delete the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)
