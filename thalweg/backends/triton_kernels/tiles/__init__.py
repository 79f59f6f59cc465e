"""Tile sizes per architecture: one JSON file each, read once when the library is made. Nothing is tuned at start.

An architecture without a file uses that of its nearest relative: the newest of its family among those not newer.
"""

from __future__ import annotations

import json
import re
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class RowTiles:
    """Work by rows. elements: of all rows of one program together. per_warp: elements per warp. warps: the maximum."""

    elements: int
    per_warp: int
    warps: int

    def split(self, width: int) -> tuple[int, int, int]:
        """(rows per program, padded width, warps) for rows of `width` elements."""
        block = 1 << max(0, width - 1).bit_length()
        rows = max(1, self.elements // block)
        return rows, block, min(self.warps, max(1, rows * block // self.per_warp))


@dataclass(frozen=True, slots=True)
class AttentionTile:
    """One attention launch. rows: query tokens x query heads per KV head. keys: of one iteration, for 128 elements of
    two bytes per head. stages: of the load pipeline."""

    rows: int
    keys: int
    warps: int
    stages: int


@dataclass(frozen=True, slots=True)
class LatentTiles:
    """Launches of latent attention. rows: query tokens x query heads. keys: those for 576 elements of two bytes.
    float32: there are matrix instructions for it. Scalar ones would need more registers than there are. native: cached
    float8_e4m3fn is converted by the target's instructions. False where their compilation takes minutes."""

    decode: AttentionTile
    prefill: AttentionTile
    exact: AttentionTile
    float32: bool
    native: bool = True


@dataclass(frozen=True, slots=True)
class AttentionTiles:
    """split: keys per partial result, which one program of a decode makes. write: tokens stored by one program. exact_prefill:
    replaces `exact` for prompts. It has its keys, and as many rows for each warp, so that a row meets its keys as there.

    joined: the last program of a sequence to finish joins a decode's partial results, in place of a launch."""

    decode: AttentionTile
    prefill: AttentionTile
    exact: AttentionTile
    exact_prefill: AttentionTile
    latent: LatentTiles
    split: int
    write: int
    joined: bool = False


@dataclass(frozen=True, slots=True)
class ProductTile:
    """One tile of a product: rows x cols of one program, `inner` elements of two bytes per iteration.

    It serves products of `least` to `most` rows (most 0: of any number), where it makes `programs` programs or more. shared:
    slices of a sum have separate programs (`ProductTiles.slice`). whole: only for sums of one slice, as more need another
    accumulator. unroll: steps of `inner` in one iteration, of 8-bit codes."""

    rows: int
    cols: int
    inner: int
    warps: int
    stages: int
    least: int = 0
    most: int = 0
    programs: int = 0
    shared: bool = False
    unroll: int = 1
    whole: bool = False

    def serves(self, rows: int, cols: int, slices: int = 1) -> bool:
        """Does it serve a product of this size? slices: of its sums, which have programs only where `shared`."""
        fits = self.least <= rows and (not self.most or rows <= self.most) and (slices == 1 or not self.whole)
        return fits and -(-rows // self.rows) * -(-cols // self.cols) * (slices if self.shared else 1) >= self.programs

    def cut(self, most: int) -> ProductTile:
        """The same with at most so many rows and columns."""
        return replace(self, rows=min(self.rows, most), cols=min(self.cols, most))


OPERANDS = ("dense", "int8", "float8", "codes", "four", "grouped", "scaled")
"""Operands of a product: dense numbers, 8-bit integers, 8-bit floats, or codes of 8 or 4 bits that become numbers in
registers. grouped: 4-bit integers with groups of 64 or fewer. scaled: 4-bit integers that become numbers with their scales."""

FOURS = ("four", "grouped", "scaled")


@dataclass(frozen=True, slots=True)
class ProductTiles:
    """A matrix product. dense, int8, float8, codes, four, grouped, scaled: its tiles by operand, in order of preference. The
    first that serves is taken, else the tile for any sizes, `base`. Without tiles of grouped or scaled, those of four serve.

    A row keeps its bits only if every tile adds the terms of a sum in one order. Tiles of one list therefore have the same
    `inner`, but where sums are exact (integers), or where the matrix unit adds up whole rows itself and a device has shown it.

    The tile for any sizes: rows x cols. `narrow` columns replace `cols` where the weight has fewer than `wide` rows, so that
    there are programs enough to read it.

    slice: of weights of 4-bit codes with fewer than `sliced` outputs, sums of so many inputs are made apart and then added.

    experts: tiles of mixtures with dense weights, by the pairs of an expert on average. () = `base`."""

    rows: int
    cols: int
    narrow: int
    wide: int
    inner: int
    warps: int
    stages: int
    dense: tuple[ProductTile, ...]
    int8: tuple[ProductTile, ...]
    float8: tuple[ProductTile, ...]
    codes: tuple[ProductTile, ...]
    four: tuple[ProductTile, ...]
    grouped: tuple[ProductTile, ...]
    scaled: tuple[ProductTile, ...]
    slice: int
    sliced: int
    experts: tuple[ProductTile, ...]

    def base(self, cols: int) -> ProductTile:
        return ProductTile(self.rows, self.cols if cols >= self.wide else self.narrow, self.inner, self.warps, self.stages)

    def choose(self, operands: str, rows: int, cols: int, width: int = 0) -> ProductTile:
        """The tile where `rows` rows meet a weight [cols, width]. operands: one of OPERANDS. width 0: sums have one slice."""
        tiles: tuple[ProductTile, ...] = getattr(self, operands) or (self.four if operands in FOURS else ())
        slices = -(-width // (self.slice_of(operands, cols, width) or width or 1)) or 1
        return next((t for t in tiles if t.serves(rows, cols, slices)), self.base(cols))

    def slice_of(self, operands: str, cols: int, width: int) -> int:
        """Inputs of separate sums, 0 where there is one sum: a number of the weight, for all tiles."""
        return self.slice if operands in FOURS and cols < self.sliced and width > self.slice else 0


@dataclass(frozen=True, slots=True)
class VocabTiles:
    """Work over the vocabulary. block: elements of one iteration. chunk: of one program where a row is shared by
    several. bits: of the ordered key that one pass of the threshold search settles. group: tokens of which truncation keeps
    the largest. listed: groups with tokens that one program holds, in held_warps warps."""

    block: int
    chunk: int
    bits: int
    warps: int
    group: int
    listed: int
    held_warps: int


@dataclass(frozen=True, slots=True)
class TileSizes:
    """All tile sizes of one architecture. shared: bytes of shared memory one program may use. scalar: most rows,
    columns and keys of a tile of float32 products. No matrix unit makes those exactly, and the scalar instructions
    are all unrolled. float8: the 8-bit float that it converts and multiplies itself, float8_e4m3fn or
    float8_e4m3fnuz. "" = none. paired: NVIDIA's instructions for two numbers of 16 bits serve bfloat16 too. dependent:
    launches of a layer start before the launch ahead of them ends (`dependent`)."""

    arch: str
    shared: int
    scalar: int
    float8: str
    paired: bool
    rows: RowTiles
    attention: AttentionTiles
    product: ProductTiles
    vocab: VocabTiles
    dependent: bool = False


def of_any_rows(t: TileSizes) -> TileSizes:
    """The same with one tile for products of any number of rows, and for exact attention over prompts that of decodes."""
    product = replace(t.product, dense=(), int8=(), float8=(), codes=(), four=(), grouped=(), scaled=(), experts=())
    return replace(t, product=product, attention=replace(t.attention, exact_prefill=t.attention.exact))


DEPENDENT = 90
"""The first of NVIDIA's architectures with programmatic dependent launch."""


def refuse_dependent_launch(arch: str) -> str | None:
    """None, or why a launch of this architecture cannot start before the one ahead of it ends."""
    family, number = _parts(arch)
    return (
        None if family == "sm" and number >= DEPENDENT else f"requires an NVIDIA GPU with sm_{DEPENDENT} or later, not {arch}"
    )


PAIRED = 80
"""The first of NVIDIA's architectures with instructions for two bfloat16 numbers."""


def known_architectures() -> tuple[str, ...]:
    """Architectures that have a file."""
    return tuple(sorted(p.stem for p in FOLDER.glob("*.json")))


def nearest(arch: str) -> str:
    """The architecture with the file that serves `arch`. ValueError if none of its family has one."""
    if arch in known_architectures():
        return arch
    family, number = _parts(arch)
    relatives = sorted((n, a) for a in known_architectures() for f, n in [_parts(a)] if f == family)
    if not relatives:
        raise ValueError(f"no tile sizes for {arch!r} or a relative; there are: {', '.join(known_architectures())}")
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


def tiles(arch: str) -> TileSizes:
    """The tile sizes that serve `arch`. ValueError names the file and field of a malformed one."""
    name = nearest(arch)
    path = FOLDER / f"{name}.json"
    result: TileSizes = _read(TileSizes, {"arch": name, **json.loads(path.read_text())}, path.name)
    return replace(result, paired=result.paired and _parts(arch)[1] >= PAIRED)


def _read(kind: Any, data: dict[str, Any], where: str) -> Any:
    kinds = {k.__name__: k for k in (RowTiles, AttentionTiles, LatentTiles, AttentionTile, ProductTiles, VocabTiles)}
    names = {f.name for f in fields(kind)}
    needed = {f.name for f in fields(kind) if f.default is MISSING}
    if not needed <= set(data) <= names:
        raise ValueError(f"{where}: fields {sorted(data)}, expected {sorted(names)}")
    result = {}
    for f in (f for f in fields(kind) if f.name in data):
        inner, value, at = kinds.get(str(f.type)), data[f.name], f"{where}: {f.name}"
        if f.type == "tuple[ProductTile, ...]":
            result[f.name] = tuple(_read_shape(each, f"{at}[{i}]") for i, each in enumerate(value))
        else:
            result[f.name] = _read(inner, value, at) if inner else value
    return kind(**result)


def _read_shape(data: dict[str, Any], where: str) -> ProductTile:
    """Fields with a default may be left out."""
    names = {f.name for f in fields(ProductTile)}
    needed = {f.name for f in fields(ProductTile) if f.default is MISSING}
    if not needed <= set(data) <= names:
        raise ValueError(f"{where}: fields {sorted(data)}, expected {sorted(needed)} and perhaps {sorted(names - needed)}")
    return ProductTile(**data)
