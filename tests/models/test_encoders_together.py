"""Images that are encoded together, or some layers at a time, have the bits that each has in a run of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("PIL.Image", reason="images need Pillow: pip install 'thalweg[images]'")

import seeing
from test_images import FIRST, SIZES, engine, picture, seen

from thalweg.checkpoint.config import read_config
from thalweg.engine.messages import Input
from thalweg.engine.worker.encoder import EncoderRunner
from thalweg.media.processors import processor

NAMES = [n if n in (FIRST, "qwen2.5-vl") else pytest.param(n, marks=pytest.mark.slow) for n in seeing.FAMILIES]


def run(encoder: EncoderRunner, items: list[Input], layers: int = 1000) -> list[np.ndarray]:
    """In as many runs as the encoder needs: some encode one image at a time."""
    vectors: list[np.ndarray] = []
    while items:
        encoding = encoder.begin(items)
        assert encoding.items
        assert list(encoding.items) == items[: len(encoding.items)]
        items = items[len(encoding.items) :]
        while encoding.layers_left:
            last = encoding.launch(layers)
            if encoding.layers_left:
                last.result()
        vectors += encoding.vectors(last)
    return vectors


@pytest.mark.parametrize("name", NAMES)
def test_vectors_are_the_same_alone_together_and_in_parts(name: str, tmp_path: Path) -> None:
    seeing.make(name, tmp_path)
    llm = engine(tmp_path, max_model_len=512, num_gpu_blocks_override=200)
    try:
        worker = llm.llm_engine.worker
        beside = worker.encoder
        assert isinstance(beside, EncoderRunner)
        ours = processor(read_config(tmp_path), tmp_path)
        assert ours is not None
        items = []
        for seed, size in enumerate(SIZES):
            views, shown = seen(picture(*size, seed), ours)
            places = np.arange(ours.count(shown), dtype=np.int32)
            items.append(Input(kind="image", digest=bytes([seed]), positions=places, data=views, size=shown))
        alone = [run(beside, [item])[0] for item in items]
        between = EncoderRunner(worker.device, None, beside._kinds)  # layers a few at a time, in the queue of the steps
        for way in (run(beside, items), run(between, items, 1), run(between, items[::-1], 2)[::-1]):
            for one, other in zip(alone, way, strict=True):
                assert one.shape == other.shape
                assert np.array_equal(one.view(np.int32), other.view(np.int32))
    finally:
        llm.llm_engine.close() if hasattr(llm.llm_engine, "close") else None
