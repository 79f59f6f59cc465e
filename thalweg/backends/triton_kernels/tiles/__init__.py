"""Tile sizes per architecture: one JSON file each, read once when the library is made. Nothing is tuned at start.

An architecture without a file uses that of its nearest relative: the newest one of its family that is not newer.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Rows:
    """Work by rows. elements: of all rows of one program together. per_warp: elements one warp takes. warps: most of
    them."""

    elements: int
    per_warp: int
    warps: int

    def split(self, width: int) -> tuple[int, int, int]:
        """(rows per program, padded width, warps) for rows of `width` elements."""
        block = 1 << max(0, width - 1).bit_length()
        rows = max(1, self.elements // block)
        return rows, block, min(self.warps, max(1, rows * block // self.per_warp))


@dataclass(frozen=True, slots=True)
class Attend:
    """One attention launch. rows: query tokens x query heads per KV head. keys: of one iteration, for 128 elements of
    two bytes per head. stages: of the load pipeline."""

    rows: int
    keys: int
    warps: int
    stages: int


@dataclass(frozen=True, slots=True)
class Latent:
    """Launches of latent attention. rows: query tokens x query heads. keys: those for 576 elements of two bytes.
    float32: there are matrix instructions for it. Scalar ones would need more registers than there are."""

    decode: Attend
    prefill: Attend
    exact: Attend
    float32: bool


@dataclass(frozen=True, slots=True)
class Attention:
    """split: keys whose partial result one program of a decode makes. write: tokens stored by one program. exact_prefill: in
    place of `exact` for prompts. It has its keys, and as many rows for each warp, so that a row meets its keys as there."""

    decode: Attend
    prefill: Attend
    exact: Attend
    exact_prefill: Attend
    latent: Latent
    split: int
    write: int


@dataclass(frozen=True, slots=True)
class Shape:
    """Another tile of a product: rows x cols of one program. programs: see `Product`."""

    rows: int
    cols: int
    warps: int
    stages: int
    programs: int


@dataclass(frozen=True, slots=True)
class Product:
    """A matrix product: rows x cols of one program, `inner` elements of two bytes per iteration. `narrow` columns
    replace `cols` where the weight has fewer than `wide` rows, so that there are programs enough to read it.

    many: in place of these where there are that many rows, and it makes `programs` programs or more: each weight that is
    read is used by more rows. few: where the others would make fewer than `programs`, so that all of the device reads.

    `inner` is that of all: the terms of a sum have one order, whatever the tile. Rows keep their bits only if all tiles
    also use one kind of matrix instruction (`ci/gpu/compile.py` says so of what it compiles)."""

    rows: int
    cols: int
    narrow: int
    wide: int
    inner: int
    warps: int
    stages: int
    many: Shape
    few: Shape

    def shape(self, rows: int, cols: int, most: int = 1 << 30, large: bool = True) -> tuple[int, int, int, int]:
        """(rows, columns, warps, stages) of a program where `rows` rows meet a weight of `cols`. most: rows or columns. large:
        `many` serves. Weights that become numbers in registers leave it no room."""

        def programs(m: int, n: int) -> int:
            return -(-rows // m) * -(-cols // n)

        made = (self.rows, self.cols if cols >= self.wide else self.narrow, self.warps, self.stages)
        for shape, fits in (
            (self.many, large and rows >= self.many.rows and programs(self.many.rows, self.many.cols) >= self.many.programs),
            (self.few, programs(*made[:2]) < self.few.programs),
        ):
            if fits:
                made = (shape.rows, shape.cols, shape.warps, shape.stages)
                break
        return min(made[0], most), min(made[1], most), made[2], made[3]


@dataclass(frozen=True, slots=True)
class Vocab:
    """Work over the vocabulary. block: elements of one iteration. chunk: of one program where a row is shared by
    several. bits: of the ordered key that one pass of the threshold search settles. group: tokens of which truncation keeps
    the largest. listed: groups whose tokens one program holds, in held_warps warps."""

    block: int
    chunk: int
    bits: int
    warps: int
    group: int
    listed: int
    held_warps: int


@dataclass(frozen=True, slots=True)
class Tiles:
    """All tile sizes of one architecture. shared: bytes of shared memory one program may use. scalar: most rows,
    columns and keys of a tile of float32 products. No matrix unit makes those exactly, and the scalar instructions
    are all unrolled. float8: the 8-bit float that it converts and multiplies itself, float8_e4m3fn or
    float8_e4m3fnuz. "" = none."""

    arch: str
    shared: int
    scalar: int
    float8: str
    rows: Rows
    attention: Attention
    product: Product
    vocab: Vocab


def of_any_rows(t: Tiles) -> Tiles:
    """The same without tiles for many rows, few programs and prompts: one tile for products of any number of rows, and for
    exact attention over prompts that of decodes."""
    p, a = t.product, t.attention
    product = replace(p, many=replace(p.many, programs=1 << 62), few=replace(p.few, programs=0))
    return replace(t, product=product, attention=replace(a, exact_prefill=a.exact))


def known() -> tuple[str, ...]:
    """Architectures that have a file."""
    return tuple(sorted(p.stem for p in FOLDER.glob("*.json")))


def nearest(arch: str) -> str:
    """The architecture whose file serves `arch`. ValueError if none of its family has one."""
    if arch in known():
        return arch
    family, number = _parts(arch)
    relatives = sorted((n, a) for a in known() for f, n in [_parts(a)] if f == family)
    if not relatives:
        raise ValueError(f"no tile sizes for {arch!r} or a relative; there are: {', '.join(known())}")
    older = [a for n, a in relatives if n <= number]
    return older[-1] if older else relatives[0][1]


def _parts(arch: str) -> tuple[str, int]:
    """("sm", 90), ("gfx9", 0x42): a family and a number that orders it. Letters after the digits are variants."""
    if m := re.fullmatch(r"sm_?(\d+)[a-z]*", arch):
        return "sm", int(m[1])
    if m := re.fullmatch(r"gfx(9|1[0-9])([0-9a-f]+)", arch):
        return ("gfx9" if m[1] == "9" else "gfx1"), int(m[1] + m[2], 16)
    if m := re.fullmatch(r"xe(\d+)[a-z]*", arch):
        return "xe", int(m[1])
    return arch, 0


def tiles(arch: str) -> Tiles:
    """The tile sizes that serve `arch`. ValueError names the file and field of a malformed one."""
    name = nearest(arch)
    path = FOLDER / f"{name}.json"
    made: Tiles = _read(Tiles, {"arch": name, **json.loads(path.read_text())}, path.name)
    return made


def _read(kind: Any, data: dict[str, Any], where: str) -> Any:
    kinds = {
        "Rows": Rows,
        "Attention": Attention,
        "Latent": Latent,
        "Attend": Attend,
        "Product": Product,
        "Shape": Shape,
        "Vocab": Vocab,
    }
    names = {f.name for f in fields(kind)}
    if set(data) != names:
        raise ValueError(f"{where}: fields {sorted(data)}, expected {sorted(names)}")
    made = {}
    for f in fields(kind):
        inner = kinds.get(str(f.type))
        made[f.name] = _read(inner, data[f.name], f"{where}: {f.name}") if inner else data[f.name]
    return kind(**made)
