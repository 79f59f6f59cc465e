"""An image of several views as a step: what each patch sees, on the host and as the encoder works it out."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch

from thalweg.media import patches
from thalweg.media.processors.minicpm_v import MiniCpmV
from thalweg.models.vision import tower

SIZE = (96, 40)


def batch() -> Any:
    """Of an image that is shown whole and in slices of other sizes."""
    p = MiniCpmV(token=1, patch=4, mean=(0.5,) * 3, std=(0.5,) * 3, scale=1 / 255, resample=3, side=6, edge=32, most=4)
    views = []
    for view in p.views(*SIZE):
        left, top, right, bottom = view.box or (0, 0, *view.sizes[-1])
        views.append(np.full((bottom - top, right - left, 3), len(views), np.uint8))
    return patches.batch(p.preprocess(views, SIZE))


def test_each_view_is_a_sequence_of_its_own() -> None:
    made = batch()
    assert len(made.query) > 2
    assert len(set(made.query.tolist())) > 1
    for i, length in enumerate(made.query):
        rows = np.flatnonzero(made.token_seq == i)
        np.testing.assert_array_equal(made.positions[rows], np.arange(length))
        assert made.last_row[i] == rows[-1]


def test_the_encoder_sees_windows_and_merged_patches_as_the_host_does() -> None:
    """Metadata of attention is made there, and the rest of a step here."""
    whole = batch()
    held = {f.name: getattr(whole.parts[0], f.name) for f in fields(whole.parts[0])}
    arrays = {name: torch.from_numpy(value) for name, value in held.items() if isinstance(value, np.ndarray)}
    parts = replace(whole.parts[0], **arrays)
    names = ("tokens", "token_seq", "positions", "slots", "context", "query", "last_row")
    there = replace(whole, parts=(parts,), **{name: torch.from_numpy(getattr(whole, name)) for name in names})
    pairs = [(patches.windows(whole), tower.windows(there)), (patches.shrunk(whole, 4), tower.shrunk(there, 4))]
    for host, device in pairs:
        for name in ("token_seq", "query", "last_row"):
            np.testing.assert_array_equal(getattr(host, name), getattr(device, name).numpy(), err_msg=name)
    np.testing.assert_array_equal(pairs[1][0].positions, pairs[1][1].positions.numpy())
