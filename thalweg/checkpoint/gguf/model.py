"""A GGUF file as a model of transformers: its configuration, and its tensors under the names and with the values that such a
checkpoint has.

What layers hold in codes is kept as the file's blocks, uint8 [rows, bytes of a row]: which those are, and of what type,
stands in the configuration's `quantization_config`, for the format `gguf` to read. Everything else is dense, decoded where
it has to be.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from thalweg.checkpoint.gguf import blocks
from thalweg.checkpoint.gguf.architectures import TABLE
from thalweg.checkpoint.gguf.architectures.common import Architecture, configuration
from thalweg.checkpoint.gguf.files import Files, open_files
from thalweg.checkpoint.gguf.header import Tensor
from thalweg.checkpoint.gguf.keys import Keys
from thalweg.checkpoint.gguf.types import Type
from thalweg.errors import CheckpointError, UnsupportedModelError

logger = logging.getLogger(__name__)

METHOD = "gguf"
"""`quant_method` of such a configuration."""
_LAYER = re.compile(r"blk\.(\d{1,5})\.(.+)")
_READ_APART = ("rope_freqs.weight", "attn_rot_embd.weight")
"""Ends of names of tensors whose values stand in the configuration, or can be computed."""
EXPERTS = ".experts."
"""In the names of experts' tensors, after the layer's part that they belong to."""
DOWN = ".ffn_down"
"""In the names that files give their down projections."""
_EXPERT = re.compile(r"(ffn_(?:gate|up|down))\.(\d{1,4})")
"""One expert's, as files of before April 2024 have them."""
_COMPANIONS = (".scale", ".input_scale")
"""Ends of names of what NVFP4 keeps beside its blocks."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A tensor as transformers has it, and what it is made of."""

    source: str
    shape: tuple[int, ...]
    index: int | None = None
    """Which matrix of a tensor that holds several."""
    first: int = 0
    """The first of its rows in the source's."""
    heads: int = 0
    """Whose rows were written in pairs; 0 = rows lie as they should."""
    add: float = 0.0
    by_head: bool = False
    """The source has a matrix for each head, which become one."""
    swapped: bool = False
    """Each lies on its side."""
    coded: bool = False
    """Kept as the file's blocks."""


@dataclass(frozen=True, slots=True)
class Translated:
    files: Files
    config: Mapping[str, Any]
    pieces: Mapping[str, Piece]


def translate(path: str | Path) -> Translated:
    """CheckpointError, UnsupportedModelError name the file and the key or tensor that is wrong, or not read."""
    return _translated(open_files(path))


@lru_cache(maxsize=2)
def _translated(files: Files) -> Translated:
    name = Keys(files.path, files.metadata).text("general.architecture")
    if name not in TABLE:
        raise UnsupportedModelError(
            f"{files.path}: general.architecture: {name!r:.100} is not read by this version, which reads "
            + ", ".join(sorted(TABLE))
        )
    architecture, keys = TABLE[name], Keys(files.path, files.metadata, f"{name}.")
    common = configuration(keys, files, architecture.layer_norm, architecture.latent)
    config = common | architecture.config(keys, files)
    pieces = _alike(files, dict(_pieces(files, architecture, config)))
    held = {n.removesuffix(".weight"): files.tensors[p.source].type.name for n, p in pieces.items() if p.coded}
    config["dtype"] = _dtype(files)
    if held:
        config["quantization_config"] = {"quant_method": METHOD, "types": held}
    return Translated(files, config, pieces)


def _dtype(files: Files) -> str:
    """Of most dense matrices, or what suits blocks where there are more of those."""
    count: dict[str, int] = {}
    for t in files.tensors.values():
        kind = t.type.dense or "bfloat16"
        if len(t.shape) > 1 and kind in ("float32", "float16", "bfloat16"):
            count[kind] = count.get(kind, 0) + t.end - t.begin
    return max(count, key=lambda k: count[k], default="bfloat16")


def _pieces(files: Files, architecture: Architecture, config: Mapping[str, Any]) -> Iterator[tuple[str, Piece]]:
    count = config["num_hidden_layers"]
    for name, tensor in files.tensors.items():
        stem, _, kind = name.rpartition(".")
        found = _LAYER.fullmatch(stem)
        if name.endswith(_READ_APART) or (found is not None and int(found[1]) >= count and _further(files, int(found[1]))):
            continue
        if name.endswith(_COMPANIONS):
            raise UnsupportedModelError(f"{files.path}: tensor {name!r}: scales beside NVFP4 are not read by this version")
        made = _of_layer(tensor, found, architecture, config) if found else _of_model(tensor, stem, architecture)
        if made is None or kind not in ("weight", "bias") or (found is not None and int(found[1]) >= count):
            where = files.metadata["general.architecture"]
            raise CheckpointError(
                f"{files.file(name)}: tensor {name!r} is none that this version knows of the architecture {where}"
            )
        dense = (found[2] if found else stem) in architecture.dense
        for target, piece in made:
            coded = not tensor.type.dense and not dense and len(piece.shape) == 2
            raised = 1.0 if architecture.raised and target.endswith("norm") else 0.0
            full = target if found is not None and found[2] in architecture.bare else f"{target}.{kind}"
            yield full, replace(piece, coded=coded, add=-raised)


def _further(files: Files, layer: int) -> bool:
    """Is this one of the layers that predict further tokens, which come last?"""
    arch = files.metadata["general.architecture"]
    return layer < Keys(files.path, files.metadata, f"{arch}.").integer("block_count")


def _of_model(tensor: Tensor, stem: str, architecture: Architecture) -> list[tuple[str, Piece]] | None:
    whole = architecture.whole
    return [(whole[stem], Piece(tensor.name, tensor.shape))] if stem in whole else None


def _of_layer(
    tensor: Tensor, found: re.Match[str], architecture: Architecture, config: Mapping[str, Any]
) -> list[tuple[str, Piece]] | None:
    layer, part, shape = int(found[1]), found[2], tensor.shape
    heads, kv = (config[k] for k in ("num_attention_heads", "num_key_value_heads"))

    def target(name: str) -> str:
        return architecture.layers.format(layer, name)

    if part == "attn_qkv":
        return _parts_of_qkv(tensor, target, architecture, (heads, kv, kv), config["head_dim"])
    experts = architecture.experts or {}
    if part == "ffn_gate_up_exps" and experts and len(shape) == 3 and shape[1] % 2 == 0:
        half = shape[1] // 2
        return [
            (target(experts[p].format(e)), Piece(tensor.name, (half, shape[2]), e, first))
            for p, first in (("ffn_gate_exps", 0), ("ffn_up_exps", half))
            for e in range(shape[0])
        ]
    if part in experts:
        if len(shape) != 3:
            return None
        return [(target(experts[part].format(e)), Piece(tensor.name, shape[1:], e)) for e in range(shape[0])]
    if experts and (old := _EXPERT.fullmatch(part)):
        return [(target(experts[f"{old[1]}_exps"].format(int(old[2]))), Piece(tensor.name, shape))]
    if part not in architecture.layer:
        return None
    if part in architecture.by_head and len(shape) == 3:
        swapped = architecture.by_head[part]
        count, rows, inputs = (shape[0], shape[2], shape[1]) if swapped else shape
        whole = Piece(tensor.name, (count * rows, inputs), by_head=True, swapped=swapped)
        return [(target(architecture.layer[part]), whole)]
    return [(target(architecture.layer[part]), Piece(tensor.name, shape, heads=_turned(architecture, part, heads, kv)))]


def _parts_of_qkv(
    tensor: Tensor, target: Callable[[str], str], architecture: Architecture, heads: Sequence[int], head_dim: int
) -> list[tuple[str, Piece]] | None:
    """Of one tensor that holds all three. None if its rows are not theirs."""
    made, first = [], 0
    for part, count in zip(("attn_q", "attn_k", "attn_v"), heads, strict=True):
        rows = count * head_dim
        shape, turned = (rows, *tensor.shape[1:]), _turned(architecture, part, heads[0], heads[1])
        made.append((target(architecture.layer[part]), Piece(tensor.name, shape, first=first, heads=turned)))
        first += rows
    return made if first == tensor.shape[0] else None


def _turned(architecture: Architecture, part: str, heads: int, kv: int) -> int:
    return {"attn_q": heads, "attn_k": kv}.get(part, 0) if architecture.turned else 0


def _alike(files: Files, pieces: dict[str, Piece]) -> dict[str, Piece]:
    """Gate and up of all experts of a layer are one parameter, and down another. Where gate and up are of two types, they
    become dense."""

    def parameter(name: str, piece: Piece) -> tuple[str, bool]:
        return name.partition(EXPERTS)[0], DOWN in piece.source

    kinds: dict[tuple[str, bool], set[str]] = {}
    for name, piece in pieces.items():
        if EXPERTS in name:
            kinds.setdefault(parameter(name, piece), set()).add(files.tensors[piece.source].type.name)
    return {
        name: replace(p, coded=False) if EXPERTS in name and len(kinds[parameter(name, p)]) > 1 else p
        for name, p in pieces.items()
    }


class Model:
    """Every tensor, found by the name that transformers has for it. As `checkpoint.safetensors.Checkpoint`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        made = translate(path)
        self._files, self._pieces = made.files, made.pieces
        decoded = [n for n, p in self._pieces.items() if len(p.shape) > 1 and not p.coded and not self._type(n).dense]
        if decoded:
            kinds = ", ".join(sorted({self._type(n).name for n in decoded}))
            logger.warning(
                "%s: %d matrices (%s) are decoded while they are loaded, and take the memory of dense ones: first %s",
                path.name, len(decoded), kinds, decoded[0],
            )  # fmt: skip

    def _type(self, name: str) -> Type:
        return self._files.tensors[self._pieces[name].source].type

    @property
    def names(self) -> list[str]:
        return sorted(self._pieces)

    @property
    def bytes(self) -> int:
        """Of all tensors, in the files."""
        return sum(t.end - t.begin for t in self._files.tensors.values())

    def __contains__(self, name: str) -> bool:
        return name in self._pieces

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def file(self, name: str) -> Path:
        """The file that holds the tensor, for messages."""
        return self._files.file(self._pieces[name].source)

    def entry(self, name: str) -> tuple[str, tuple[int, ...]]:
        """(dtype name, shape); of what is kept in blocks uint8 and their bytes. CheckpointError if there is no such tensor."""
        if name not in self._pieces:
            raise CheckpointError(f"{self.path}: has no tensor {name!r}")
        piece = self._pieces[name]
        kind = self._type(name)
        if piece.coded:
            return "uint8", (*piece.shape[:-1], kind.row(piece.shape[-1]))
        return kind.dense if kind.dense and not piece.add else "float32", piece.shape

    def read(self, name: str, rows: slice | None = None, cols: slice | None = None) -> np.ndarray:
        """The tensor, or some rows (first dimension) and columns (second) of it: a view of the file where its values lie there
        as they are wanted, and else made."""
        piece = self._pieces[name]
        kind = self._type(name)
        if piece.by_head:
            return self._joined(piece, kind)[rows or slice(None), cols or slice(None)]
        raw = self._rows(piece, rows)
        if not kind.dense and not piece.coded:
            flat = raw.reshape(-1, raw.shape[-1])
            raw = blocks.dense(kind, flat).reshape(*raw.shape[:-1], -1)
        if cols is not None:
            if piece.coded or len(piece.shape) < 2:
                raise ValueError(f"{name}: columns asked of a tensor that has none")
            raw = raw[:, cols]
        if piece.add:
            wide = raw.astype(np.uint32) << 16 if kind.dense == "bfloat16" else raw
            raw = (wide.view(np.float32) if kind.dense == "bfloat16" else wide.astype(np.float32)) + np.float32(piece.add)
        return raw

    def _joined(self, piece: Piece, kind: Type) -> np.ndarray:
        """The matrices of all heads as one."""
        raw: np.ndarray = self._files.read(piece.source)
        if not kind.dense:
            raw = blocks.dense(kind, raw.reshape(-1, raw.shape[-1])).reshape(*raw.shape[:-1], -1)
        return (raw.swapaxes(1, 2) if piece.swapped else raw).reshape(piece.shape)

    def _rows(self, piece: Piece, rows: slice | None) -> np.ndarray:
        raw: np.ndarray = self._files.read(piece.source)
        if piece.index is not None:
            raw = raw[piece.index]
        if len(piece.shape) == 1 and not self._files.tensors[piece.source].type.dense:
            return raw  # blocks of a vector
        raw = raw[piece.first : piece.first + piece.shape[0]]
        if piece.heads:
            order = _order(piece.shape[0], piece.heads)
            raw = raw[order if rows is None else order[rows]]
            return raw
        return raw if rows is None else raw[rows]

    def forget(self, name: str) -> None:
        """The tensor's pages no longer count as this process's memory; reading it brings them back."""
        self._files.forget(self._pieces[name].source)


def _order(rows: int, heads: int) -> np.ndarray:
    """Where each row lies in the file: the converter put row i of a head's first half and row i of its second side by side."""
    found: np.ndarray = np.arange(rows).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)
    return found
