"""Patches of several images, or of several views of one, as one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from thalweg.media.patches import F32, I32, PatchInputs


def together(parts: Sequence[PatchInputs], group: int, shrunk: int = 1) -> PatchInputs:
    """Several images of one processor, without attention among images. group: patches that become one vector. shrunk: patches
    merged into one within the encoder, after which `keep` counts."""
    if len(parts) == 1:
        return parts[0]
    begins = np.cumsum([0, *(len(p.value) // shrunk for p in parts)], dtype=I32)
    out = PatchInputs(
        np.concatenate([p.value for p in parts]), [n for p in parts for n in p.lengths],
        np.concatenate([np.where(p.keep < 0, p.keep, p.keep + at) for p, at in zip(parts, begins, strict=False)]),
    )  # fmt: skip
    if any(p.place is not None for p in parts):
        out.place, out.share = _pad([(p.place, p.share) for p in parts])
    if parts[0].turn is not None:
        out.turn = np.concatenate([p.turn for p in parts if p.turn is not None])
    if any(p.mix is not None for p in parts):
        out.mix, out.part = _pad(list(_mix(parts, group)))
    if any(p.windows for p in parts):
        out.windows = [n for p in parts for n in p.windows or p.lengths]
    return out


def _mix(parts: Sequence[PatchInputs], group: int) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
    """(mix, part) of each image, with vectors numbered over all images. Learned vectors have the indices after the last."""
    counts = [len(p.keep) // group if p.vectors is None else p.vectors for p in parts]
    for p, n, begin in zip(parts, counts, np.cumsum([0, *counts], dtype=I32), strict=False):
        mix = np.arange(n, dtype=I32)[:, None] if p.mix is None else p.mix
        yield np.where(mix >= n, mix + I32(sum(counts) - n), mix + begin).astype(I32), p.part


def _pad(pairs: Sequence[tuple[np.ndarray | None, np.ndarray | None]]) -> tuple[np.ndarray, np.ndarray]:
    """Rows of tables and their shares, concatenated. Images with fewer columns are padded with shares of 0."""
    tables = [(at, np.ones(at.shape, F32) if share is None else share) for at, share in pairs if at is not None]
    width = max(at.shape[1] for at, _ in tables)
    rows, shares = zip(*((np.pad(a, ((0, 0), (0, width - a.shape[1]))) for a in pair) for pair in tables), strict=True)
    return np.concatenate(rows), np.concatenate(shares)


def concat_views(parts: Sequence[PatchInputs]) -> PatchInputs:
    """Of several views, none of which sees another. All have places, of rows of the table as many as are needed."""
    near = max(p.place.shape[1] for p in parts if p.place is not None)

    def pad(each: np.ndarray | None) -> np.ndarray:
        assert each is not None
        return np.pad(each, ((0, 0), (0, near - each.shape[1])))

    begins = np.cumsum([0, *(len(p.value) for p in parts)], dtype=I32)
    turns = [p.turn for p in parts if p.turn is not None]
    return PatchInputs(
        np.concatenate([p.value for p in parts]), [n for p in parts for n in p.lengths],
        np.concatenate([np.where(p.keep < 0, p.keep, p.keep + at) for p, at in zip(parts, begins, strict=False)]),
        place=np.concatenate([pad(p.place) for p in parts]), share=np.concatenate([pad(p.share) for p in parts]),
        turn=np.concatenate(turns) if turns else None,
    )  # fmt: skip
