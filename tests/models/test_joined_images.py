"""Families of known encoders before known decoders: their text parts, and their settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("PIL.Image", reason="images need Pillow: pip install 'thalweg[images]'")

import seeing
from seeing_joined import JOINED
from seeing_llava import LLAVA
from seeing_tiled import TILES
from test_images import GREEDY, NEW, asks, engine

from thalweg.checkpoint.config import read_config
from thalweg.media.processors import processor


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", [*JOINED, *LLAVA, *TILES])
def test_the_text_part_reads_no_tensor_of_images(name: str, tmp_path: Path) -> None:
    model = seeing.make(name, tmp_path)
    llm = engine(tmp_path, language_model_only=True)
    try:
        out = llm.chat(asks("hello"), GREEDY, use_tqdm=False)[0]
        ids = list(out.prompt_token_ids)
        assert list(out.outputs[0].token_ids) == seeing.greedy(model, name, ids, [], NEW)
    finally:
        llm.shutdown()


@pytest.mark.parametrize(
    ("size", "kwargs", "limits"),
    [
        ({"min_pixels": 512, "max_pixels": 2048}, {}, (512, 2048)),
        ({"min_pixels": 512, "max_pixels": 2048}, {"max_pixels": 1024}, (512, 1024)),
        ({"shortest_edge": 512, "longest_edge": 2048}, {}, (512, 2048)),
    ],
)
def test_sizes_of_tarsier_2_are_numbers_of_pixels(
    size: dict[str, int], kwargs: dict[str, int], limits: tuple[int, int], tmp_path: Path
) -> None:
    seeing.settings("tarsier2", tmp_path)
    file = tmp_path / "preprocessor_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "size": size}))
    made: Any = processor({**read_config(tmp_path), "mm_processor_kwargs": kwargs}, tmp_path)
    np.testing.assert_equal((made.least, made.most), limits)
