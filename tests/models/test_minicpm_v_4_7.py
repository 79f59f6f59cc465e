"""MiniCPM-V 4.7: positions of images, their slices and the tokens around them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("PIL.Image", reason="images need Pillow: pip install 'thalweg[images]'")

import seeing
from seeing_queries import CANVAS, CANVAS_IDS
from test_images import SIZES, picture, seen

from thalweg.checkpoint.config import read_config
from thalweg.engine.control.parts.axes import compute_shifts
from thalweg.engine.control.request import Request
from thalweg.engine.messages import Input, TokenSampling
from thalweg.errors import CheckpointError
from thalweg.media.processors import processor

NAME = "minicpm-v4.7"
TOKENS = {**seeing.IDS, **{name: 256 + len(seeing.IDS) + i for i, name in enumerate(CANVAS)}, "\n": CANVAS_IDS["newline_id"]}
LINE = CANVAS_IDS["newline_id"]


def ids_of(text: str) -> list[int]:
    out: list[int] = []
    while text:
        name = next((name for name in TOKENS if text.startswith(name)), text[0])
        out.append(TOKENS.get(name, 7))
        text = text.removeprefix(name)
    return out


@pytest.mark.parametrize("begins", [True, False])
@pytest.mark.parametrize("between", ["", "\n", "\n\n", "a\n", "\nb"])
def test_positions_are_those_of_transformers(between: str, begins: bool, tmp_path: Path) -> None:
    """Line ends directly behind an image belong to its canvas. At the start of a prompt there is no place outside of it."""
    seeing.settings(NAME, tmp_path)
    ours: Any = processor(read_config(tmp_path), tmp_path)
    model = seeing.build(NAME)
    ids, items, grids = [] if begins else ids_of("abc"), list[Input](), []
    for seed, (width, height) in enumerate((*SIZES, (120, 40), (35, 140), (200, 190))):
        image = picture(width, height, seed)
        views, size = seen(image, ours)
        start = len(ids)
        ids += ids_of(ours.text(size, "<|image_pad|>"))
        places = np.flatnonzero(np.array(ids) == TOKENS["<|image_pad|>"]).astype(np.int32)
        items.append(Input(kind="image", digest=b"", positions=places[places >= start], data=views, size=size))
        ids += ids_of(between)
        grids += np.asarray(seeing.read(NAME, [image])["target_sizes"]).tolist()
    ids += ids_of("end")
    arranged = []
    for item in items:
        found = ours.frame((item.size[0], item.size[1]), ids, item.positions)
        arranged.append(
            Input(
                kind="image",
                digest=b"",
                positions=item.positions,
                data=item.data,
                size=item.size,
                axes=found.axes,
                extent=found.extent,
                lead=found.lead,
                tail=found.tail,
            )
        )
    said = torch.tensor([ids])
    shown = (said == TOKENS["<|image_pad|>"]).int()
    want, delta = model.model.get_rope_index(said, shown, target_sizes=torch.tensor(grids))
    request = Request(
        1, TokenSampling(max_tokens=1), len(ids), (0, 0), b"", True, 999, 0.0, np.array(ids, np.int32), inputs=tuple(arranged)
    )
    shift, after = compute_shifts(request)
    np.testing.assert_array_equal(shift + np.arange(len(ids))[:, None], want[:, 0].T.numpy())
    assert after == int(delta[0])


def test_a_file_without_the_tokens_of_the_canvas_is_refused(tmp_path: Path) -> None:
    seeing.settings(NAME, tmp_path)
    config = read_config(tmp_path)
    config["beside_text"].pop("newline_id")
    with pytest.raises(CheckpointError, match="newline_id: missing"):
        processor(config, tmp_path)
