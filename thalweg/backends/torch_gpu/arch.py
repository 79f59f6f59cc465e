"""Facts of GPU generations and cards, known without asking a driver: types, memory, and the sizes that suit them.

They decide defaults and the figures of `thalweg plan`. An opened device corrects the ones it knows better.
Imports no framework.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from thalweg.hal.platform import Defaults, ModelInfo
from thalweg.hal.step import StepShape

GIB = 1 << 30
ALL = ("bfloat16", "float16", "float32")
HALF = ("float16", "float32")


@dataclass(frozen=True, slots=True)
class Arch:
    """A generation of one vendor's GPUs. dtypes: compute types its matrix units take, best first. () = too old to
    serve on. fp8: the 8-bit float its matrix units take, "" = none."""

    name: str
    family: str
    dtypes: tuple[str, ...] = ALL
    fp8: str = ""


OCP, FNUZ = "float8_e4m3fn", "float8_e4m3fnuz"
ARCHES: dict[str, Arch] = {
    a.name: a
    for a in (
        Arch("sm_60", "Pascal", ()), Arch("sm_61", "Pascal", ()), Arch("sm_70", "Volta", ()), Arch("sm_75", "Turing", HALF),
        Arch("sm_80", "Ampere"), Arch("sm_86", "Ampere"), Arch("sm_87", "Ampere"), Arch("sm_89", "Ada", ALL, OCP),
        Arch("sm_90", "Hopper", ALL, OCP), Arch("sm_100", "Blackwell", ALL, OCP), Arch("sm_103", "Blackwell", ALL, OCP),
        Arch("sm_110", "Blackwell", ALL, OCP), Arch("sm_120", "Blackwell", ALL, OCP), Arch("sm_121", "Blackwell", ALL, OCP),
        Arch("gfx900", "Vega", ()), Arch("gfx906", "Vega", ()), Arch("gfx908", "CDNA"), Arch("gfx90a", "CDNA2"),
        Arch("gfx942", "CDNA3", ALL, FNUZ), Arch("gfx950", "CDNA4", ALL, OCP), Arch("gfx1030", "RDNA2", HALF),
        Arch("gfx1100", "RDNA3"), Arch("gfx1101", "RDNA3"), Arch("gfx1102", "RDNA3"), Arch("gfx1150", "RDNA3.5"),
        Arch("gfx1151", "RDNA3.5"), Arch("gfx1200", "RDNA4", ALL, OCP), Arch("gfx1201", "RDNA4", ALL, OCP),
        Arch("xe1lp", "Xe-LP", HALF), Arch("xe1hpg", "Xe-HPG"), Arch("xe1hpc", "Xe-HPC"), Arch("xe2", "Xe2"),
        Arch("xe3", "Xe3"),
    )
}  # fmt: skip


def arch_of(name: str) -> Arch:
    """The generation of this name. One newer than this table counts as the newest of its family's kind."""
    known = ARCHES.get(name)
    if known is not None:
        return known
    kind, number = _split(name)
    older = [a for a in ARCHES.values() if _split(a.name)[0] == kind and _split(a.name)[1] < number]
    if not older:
        return Arch(name, "unknown", ())
    like = max(older, key=lambda a: _split(a.name)[1])
    return Arch(name, f"unknown, treated as {like.name}", like.dtypes, like.fp8)


def compiled_for(beginnings: tuple[str, ...]) -> tuple[str, ...]:
    """Of the table, those of these names new enough to serve on."""
    return tuple(a.name for a in ARCHES.values() if a.dtypes and a.name.startswith(beginnings))


def _split(name: str) -> tuple[str, int]:
    """("sm_", 90), ("gfx9", 0x42), ("xe", 2): sort key of the generations of one line."""
    if name.startswith("gfx"):
        major = name[3:-2]
        return f"gfx{major}", int(name[-2:], 16) if re.fullmatch(r"[0-9a-f]{2}", name[-2:]) else -1
    m = re.fullmatch(r"(sm_|xe)(\d+)", name)
    return (m[1], int(m[2])) if m else (name, -1)


@dataclass(frozen=True, slots=True)
class Card:
    """One GPU as the system shows it. arch "": its name says nothing to us. memory_bytes 0: not known before it is opened."""

    name: str
    arch: str
    memory_bytes: int
    address: str = ""


Known = tuple[tuple[str, str, int], ...]
"""(pattern of a product name, arch, GiB), first match wins."""


def recognise(name: str, known: Known) -> tuple[str, int]:
    """(arch, bytes) of a product name. ("", 0) if it is not in the table. Memory that the name states is believed,
    unless it is more than twice the table's. Then it is the memory of the host processor."""
    for pattern, arch, gib in known:
        if re.search(pattern, name):
            stated = [int(n) for n in re.findall(r"\b(\d+) ?GB?\b", name)]
            return arch, next((n for n in stated if n <= 2 * gib), gib) * GIB
    return "", 0


SEQS = (1, 2, 4, *range(8, 64, 8), *range(64, 128, 16), *range(128, 256, 32), *range(256, 512, 64), *range(512, 1025, 128))
"""Sequences of the buckets that graphs are captured for. From 32 on at most a third of the rows is padding, in matrix
products that take 64 rows at once and attention that skips it."""
WIDTHS = (256, 2048)
"""Columns of their tables, below the widest. A graph of wide tables starts programs for absent keys."""
MIXED = (32, 64, 96, 128, 192, 256, 384, 512)
"""Tokens of the buckets of steps with prompts. Above them a device computes for longer than the launches last, and padding
costs more than a graph saves (not measured)."""
MIXED_SEQS = (8, 32, 128)
"""Sequences of those buckets, below the most."""
VERIFIED = 256
"""Tokens of steps that verify drafts, at most, for which graphs are captured."""
BLOCK_TOKENS = 16


def defaults(arch: Arch, memory_bytes: int, model: ModelInfo) -> Defaults:
    """Large cards take more sequences and longer steps at once. A graph serves steps in which every sequence decodes
    one token. Prompts run eagerly."""
    large, middle = memory_bytes >= 60 * GIB, memory_bytes >= 20 * GIB
    seqs = 512 if large else 256 if middle else 128
    return Defaults(
        dtype=arch.dtypes[0] if arch.dtypes else None,
        block_tokens=BLOCK_TOKENS,
        max_num_seqs=seqs,
        max_num_batched_tokens=8192 if large else 4096 if middle else 2048,
        pipeline_depth=2,
        buckets=buckets(seqs, blocks(model.max_len, BLOCK_TOKENS)),
        unpadded=True,
    )


def blocks(max_len: int, block_tokens: int) -> int:
    """Columns of the widest table."""
    return -(-max_len // block_tokens) + 1


def buckets(
    seqs: int, blocks: int, requested: Sequence[int] | None = None, largest: int | None = None
) -> tuple[StepShape, ...]:
    """Uniform shapes of up to `seqs` sequences and tables of up to `blocks` columns: the width costs only a copy within the
    device. requested: sizes instead of SEQS. largest: none above it. Batches that no shape holds run uncaptured."""
    most = min(seqs, largest or seqs, SEQS[-1] if requested is None else max(requested))
    sizes = [*(n for n in sorted(set(SEQS if requested is None else requested)) if n < most), most]
    return tuple(StepShape(n, n, w, True) for n in sizes for w in [*(w for w in WIDTHS if w < blocks), blocks])


def decode_shapes(shapes: Sequence[StepShape]) -> list[StepShape]:
    """Those of steps in which every sequence has one token."""
    return [s for s in shapes if s.uniform and s.tokens == s.seqs]


def verifying(
    seqs: int, drafts: int, blocks: int, requested: Sequence[int] | None = None, largest: int | None = None
) -> tuple[StepShape, ...]:  # fmt: skip
    """Shapes of steps in which every sequence verifies equally many drafts: 1, 3, 7 ... and `drafts`. None has more tokens than
    VERIFIED, as drafts seldom pay beyond. The other arguments are those of `buckets`."""
    widths = sorted({min((1 << i) - 1, drafts) for i in range(1, drafts.bit_length() + 1)})
    shapes = buckets(seqs, blocks, requested, largest) if drafts else ()
    most = min(VERIFIED, largest or VERIFIED)
    return tuple(replace(s, tokens=s.seqs * (1 + k)) for k in widths for s in shapes if s.seqs * (1 + k) <= most)


def mixed_shapes(
    seqs: int, tokens: int, blocks: int, requested: Sequence[int] | None = None, largest: int | None = None
) -> tuple[StepShape, ...]:  # fmt: skip
    """Shapes of steps with prompts among decodes, up to `tokens` tokens. requested: sizes instead of MIXED. largest: none above
    it. One sequence more than there are: padding tokens need a separate one. None has more sequences than tokens."""
    sizes = [n for n in sorted(set(MIXED if requested is None else requested)) if 1 < n <= min(tokens, largest or tokens)]
    counts = [*(n for n in MIXED_SEQS if n <= seqs), seqs + 1]
    return tuple(StepShape(n, s, w) for n in sizes for s in counts if s <= n for w in sorted({min(WIDTHS[0], blocks), blocks}))
