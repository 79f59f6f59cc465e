"""Translates a GGUF file to a model of transformers: its configuration, and the source of each tensor.

Quantised matrices of layers stay in the file's blocks, uint8 [rows, bytes of a row]. The configuration's `quantization_config`
has their names and types, for the format `gguf`. All other tensors are dense, decoded if necessary.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from thalweg.checkpoint.gguf.architectures import TABLE
from thalweg.checkpoint.gguf.architectures.common import Architecture, configuration
from thalweg.checkpoint.gguf.blocks import LAYOUTS
from thalweg.checkpoint.gguf.files import GGUFFiles, open_files
from thalweg.checkpoint.gguf.header import GGUFTensor
from thalweg.checkpoint.gguf.keys import Keys
from thalweg.checkpoint.gguf.pieces import PART, GGUFPiece, Order, alike, deinterleave_rows, subtract_one
from thalweg.errors import CheckpointError, UnsupportedModelError

METHOD = "gguf"
"""`quant_method` of the configuration."""
_LAYER = re.compile(r"blk\.(\d{1,5})\.([\w.]+?)(?:\.(weight|bias|scale|input_scale))?")
_READ_APART = ("rope_freqs.weight", "attn_rot_embd.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""Ends of names of tensors that the configuration replaces, or that can be computed."""
EXPERTS = ".experts."
"""Occurs in the names of experts' tensors, after the part of the layer."""
DOWN = ".ffn_down"
"""Occurs in the files' names of down projections."""
_EXPERT = re.compile(r"(ffn_(?:gate|up|down))\.(\d{1,4})")
"""Tensor of one expert, in files from before April 2024."""
_COMPANIONS = (".scale", ".input_scale")
"""Ends of names of NVFP4's separate scales."""


@dataclass(frozen=True, slots=True)
class GGUFTranslation:
    files: GGUFFiles
    config: Mapping[str, Any]
    pieces: Mapping[str, GGUFPiece]


def translate(path: str | Path) -> GGUFTranslation:
    """The translation of a GGUF file. CheckpointError and UnsupportedModelError name the file and the key or tensor."""
    return _translate(open_files(path))


@lru_cache(maxsize=2)
def _translate(files: GGUFFiles) -> GGUFTranslation:
    name = Keys(files.path, files.metadata).text("general.architecture")
    if name not in TABLE:
        raise UnsupportedModelError(
            f"{files.path}: general.architecture: {name!r:.100} is not read by this version, which reads "
            + ", ".join(sorted(TABLE))
        )
    architecture, keys = TABLE[name], Keys(files.path, files.metadata, f"{name}.")
    config = configuration(keys, files, architecture) | architecture.config(keys, files)
    pieces = _alike(files, _join_pieces(files, dict(_pieces(files, architecture, config))))
    held = {n.removesuffix(".weight"): files.tensors[p.source].type.name for n, p in pieces.items() if p.coded}
    config["dtype"] = _dtype(files)
    if held:
        known = {_alias(name, architecture): kind for name, kind in held.items()}
        config["quantization_config"] = {"quant_method": METHOD, "types": held | known} | _describe_tiles(pieces)
    return GGUFTranslation(files, config, pieces)


def _alias(name: str, architecture: Architecture) -> str:
    for part, own in architecture.aliases.items():
        name = name.replace(part, own)
    return name


def _describe_tiles(pieces: Mapping[str, GGUFPiece]) -> dict[str, Any]:
    """Layers with columns in another order, in quantised blocks."""
    found = {n.removesuffix(".weight"): list(p.tiles) for n, p in pieces.items() if p.coded and p.tiles}
    return {"tiles": found} if found else {}


def _dtype(files: GGUFFiles) -> str:
    """The dtype of most dense matrices, or bfloat16 if blocks outnumber them."""
    count: dict[str, int] = {}
    for t in files.tensors.values():
        kind = t.type.dense or "bfloat16"
        if len(t.shape) > 1 and kind in ("float32", "float16", "bfloat16"):
            count[kind] = count.get(kind, 0) + t.end - t.begin
    return max(count, key=lambda k: count[k], default="bfloat16")


def _pieces(files: GGUFFiles, architecture: Architecture, config: Mapping[str, Any]) -> Iterator[tuple[str, GGUFPiece]]:
    count = config["num_hidden_layers"]
    for name, tensor in files.tensors.items():
        found = _LAYER.fullmatch(name)
        further = found is not None and int(found[1]) >= count and _further(files, int(found[1]))
        if name.endswith(_READ_APART) or (further and not (architecture.module and config.get("num_nextn_predict_layers"))):
            continue
        make = architecture.special.get(name if found is None else name.partition(".")[2].partition(".")[2])
        if make is None and name.endswith(_COMPANIONS):
            raise UnsupportedModelError(f"{files.path}: tensor {name!r}: separate scales of NVFP4 are not supported")
        if make is not None:
            where = architecture.layers.format(int(found[1]), "") if found else ""
            result: Sequence[tuple[str, GGUFPiece]] | None = [(where + target, piece) for target, piece in make(tensor, config)]
        else:
            result = _of_layer(tensor, found, architecture, config) if found else _of_model(tensor, architecture)
        if not result or (found is not None and int(found[1]) >= count and not further):
            where = files.metadata["general.architecture"]
            raise CheckpointError(f"{files.file(name)}: tensor {name!r} is unknown in the architecture {where}")
        part = found[2] if found else name.rpartition(".")[0]
        if not all(_fits(tensor, piece) for _, piece in result):
            raise CheckpointError(f"{files.file(name)}: tensor {name!r} has shape {list(tensor.shape)}, which cannot be right")
        for target, piece in result:
            if architecture.raised and target.endswith("norm.weight") and part not in architecture.plain:
                piece = replace(piece, value=subtract_one)
            yield target, replace(piece, coded=part not in architecture.dense and _keeps(tensor, piece))


def _fits(tensor: GGUFTensor, piece: GGUFPiece) -> bool:
    """Does the tensor contain the piece?"""
    stored = tensor.shape
    if piece.index is not None:
        if len(stored) < 2 or piece.index >= stored[0]:
            return False
        stored = stored[1:]
    if math.prod(stored) == math.prod(piece.shape):
        return True
    return math.prod(stored[1:]) == math.prod(piece.shape[1:]) and piece.first + piece.shape[0] <= stored[0]


def _keeps(tensor: GGUFTensor, piece: GGUFPiece) -> bool:
    """Can this piece stay in the file's blocks?"""
    if tensor.type.dense or len(piece.shape) != 2 or piece.value is not None or piece.by_head:
        return False
    return piece.tiles is None or piece.tiles[2] % LAYOUTS[tensor.type.name].group == 0


def _further(files: GGUFFiles, layer: int) -> bool:
    """Is this layer, beyond the main ones, one of those that predict further tokens (MTP)?"""
    arch = files.metadata["general.architecture"]
    return layer < Keys(files.path, files.metadata, f"{arch}.").integer("block_count")


def _of_model(tensor: GGUFTensor, architecture: Architecture) -> list[tuple[str, GGUFPiece]] | None:
    stem, _, kind = tensor.name.rpartition(".")
    if stem not in architecture.whole or kind not in ("weight", "bias"):
        return None
    return [(f"{architecture.whole[stem]}.{kind}", GGUFPiece(tensor.name, tensor.shape))]


def _of_layer(
    tensor: GGUFTensor, found: re.Match[str], architecture: Architecture, config: Mapping[str, Any]
) -> list[tuple[str, GGUFPiece]] | None:
    layer, part, kind, shape = int(found[1]), found[2], found[3], tensor.shape
    heads, kv = (config.get(k, 0) for k in ("num_attention_heads", "num_key_value_heads"))
    if kind not in ("weight", "bias"):
        return None

    def target(name: str) -> str:
        return f"{architecture.layers.format(layer, name)}.{kind}"

    if part == "attn_qkv" and part not in architecture.layer:
        return _parts_of_qkv(tensor, target, architecture, (heads, kv, kv), config["head_dim"])
    experts = architecture.experts or {}
    if part == "ffn_gate_up_exps" and experts and len(shape) == 3 and shape[1] % 2 == 0:
        half = shape[1] // 2
        return [
            (target(experts[p].format(e)), GGUFPiece(tensor.name, (half, shape[2]), e, first))
            for p, first in (("ffn_gate_exps", 0), ("ffn_up_exps", half))
            for e in range(shape[0])
        ]
    if part in experts:
        if len(shape) != (3 if kind == "weight" else 2):
            return None
        return [(target(experts[part].format(e)), GGUFPiece(tensor.name, shape[1:], e)) for e in range(shape[0])]
    if experts and (old := _EXPERT.fullmatch(part)):
        return [(target(experts[f"{old[1]}_exps"].format(int(old[2]))), GGUFPiece(tensor.name, shape))]
    names = {**architecture.layer, **architecture.module}
    if part not in names:
        return None
    if part in architecture.by_head and len(shape) == 3:
        swapped = architecture.by_head[part]
        count, rows, inputs = (shape[0], shape[2], shape[1]) if swapped else shape
        whole = GGUFPiece(tensor.name, (count * rows, inputs), by_head=True, swapped=swapped)
        return [(target(names[part]), whole)]
    turned = _rope_heads(architecture, part, heads, kv)
    piece = GGUFPiece(tensor.name, shape, order=deinterleave_rows(shape[0], turned) if turned else None)
    full = architecture.layers.format(layer, names[part])
    return [(full if part in architecture.bare else target(names[part]), piece)]


def _parts_of_qkv(
    tensor: GGUFTensor, target: Callable[[str], str], architecture: Architecture, heads: Sequence[int], head_dim: int
) -> list[tuple[str, GGUFPiece]] | None:
    """Splits a joint tensor of q, k and v. None: its number of rows does not fit."""
    result, first = [], 0
    for part, count in zip(("attn_q", "attn_k", "attn_v"), heads, strict=True):
        rows = count * head_dim
        turned = _rope_heads(architecture, part, heads[0], heads[1])
        order = partial(_after, deinterleave_rows(rows, turned), first) if turned else None
        result.append(
            (target(architecture.layer[part]), GGUFPiece(tensor.name, (rows, *tensor.shape[1:]), first=first, order=order))
        )
        first += rows
    return result if first == tensor.shape[0] else None


def _after(order: Order, first: int) -> np.ndarray:
    return order() + first


def _rope_heads(architecture: Architecture, part: str, heads: int, kv: int) -> int:
    return {"attn_q": heads, "attn_k": kv}.get(part, 0) if architecture.turned else 0


def _join_pieces(files: GGUFFiles, pieces: dict[str, GGUFPiece]) -> dict[str, GGUFPiece]:
    """Joins the pieces of one tensor."""
    out: dict[str, GGUFPiece] = {}
    kept: dict[str, dict[str, GGUFPiece]] = {}
    for name, piece in pieces.items():
        whole, marked, number = name.partition(PART)
        if marked:
            kept.setdefault(whole, {})[number] = piece
        else:
            out[name] = piece
    for name, numbered in kept.items():
        parts = tuple(numbered[n] for n in sorted(numbered))
        result = GGUFPiece(parts[0].source, (sum(p.shape[0] for p in parts), *parts[0].shape[1:]), parts=parts)
        coded = all(p.coded for p in parts) and alike(files, result)
        out[name] = replace(result, coded=coded, parts=tuple(replace(p, coded=coded) for p in parts))
    return out


def _alike(files: GGUFFiles, pieces: dict[str, GGUFPiece]) -> dict[str, GGUFPiece]:
    """Decodes gate and up of a layer's experts if their types differ, as they form one parameter. Likewise down."""

    def parameter(name: str, piece: GGUFPiece) -> tuple[str, bool]:
        return name.partition(EXPERTS)[0], DOWN in piece.source

    kinds: dict[tuple[str, bool], set[str]] = {}
    for name, piece in pieces.items():
        if EXPERTS in name:
            kinds.setdefault(parameter(name, piece), set()).add(files.tensors[piece.source].type.name)
    return {
        name: replace(p, coded=False) if EXPERTS in name and len(kinds[parameter(name, p)]) > 1 else p
        for name, p in pieces.items()
    }
