"""Tiles with other texts, or chosen otherwise: H2OVL, NVLM-D, Eagle 2.5."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("PIL.Image", reason="images need Pillow: pip install 'thalweg[images]'")

import seeing
from seeing_tiled import CUT, TwiceCut
from test_images import SIZES, asks, engine, picture, seen

from thalweg import SamplingParams
from thalweg.checkpoint.config import read_config
from thalweg.errors import RequestError, UnsupportedModelError
from thalweg.media.processors import processor
from thalweg.models import registry


def reader(name: str, path: Path, **more: Any) -> Any:
    (path / "config.json").unlink(missing_ok=True)
    seeing.settings(name, path)
    return processor({**read_config(path), "mm_processor_kwargs": more}, path)


def test_an_image_of_h2ovl_is_cut_twice(tmp_path: Path) -> None:
    """Pixels and numbers of tiles, with `use_msac`, which is in the model's configuration or the operator's."""
    ours, theirs = reader("h2ovl", tmp_path, use_msac=True), TwiceCut(**{**CUT, "max_patches": 6})
    ours = type(ours)(**{**{f: getattr(ours, f) for f in ours.__struct_fields__}, "most": 6})
    assert ours.single
    for seed, size in enumerate((*SIZES, (500, 300), (7, 40), (1, 1), (50, 1), (64, 64))):
        image = picture(*size, seed)
        views, whole = seen(image, ours)
        want = theirs.preprocess([image])["pixel_values"]
        made = ours.preprocess(views, whole)
        assert len(views) == len(want)
        pixels = made.value.reshape(len(views), 17, -1)[:, 1:].reshape(len(views) * 16, -1)
        np.testing.assert_allclose(pixels, seeing.cut_patches(want, 7), atol=2e-6)
        assert ours.text(whole, "*") == f"<img>{'*' * 4 * len(views)}</img>"
    assert not reader("h2ovl", tmp_path).single


def test_tiles_of_nvlm_d_have_numbers(tmp_path: Path) -> None:
    ours = reader("nvlm-d", tmp_path)
    assert ours.text((28, 28), "*") == "<Image><tile_global_thumbnail>****</Image>"
    assert ours.text((56, 28), "*") == "<Image><tile_1>****<tile_2>****<tile_global_thumbnail>****</Image>"


@pytest.mark.slow
def test_templates_of_eagle_2_5_number_images(tmp_path: Path) -> None:
    """Its template writes <image-1>, its processor <image 1> and the vectors' tokens. What a user writes is no placeholder."""
    seeing.make("eagle2.5", tmp_path)
    template = (
        "{% set n = namespace(image=0) %}{% for p in messages[0].content %}{% if p.type == 'image' %}"
        "{% set n.image = n.image + 1 %}<image-{{ n.image }}>{% else %}{{ p.text }}{% endif %}{% endfor %}"
    )
    a, b = picture(28, 28), picture(28, 28, 1)
    llm = engine(tmp_path)
    try:
        (out,) = llm.chat(asks(a, " <image-2> ", b), SamplingParams(max_tokens=1), chat_template=template, use_tqdm=False)
        shown = [f"<image {i}><img>{'<IMG_CONTEXT>' * 4}</img>" for i in (1, 2)]
        assert out.prompt == f"{shown[0]} <image-2> {shown[1]}"
        with pytest.raises(RequestError, match="the prompt shows 0 of 1 images"):
            llm.chat(asks(a), SamplingParams(max_tokens=1), chat_template="{{ 'none' }}", use_tqdm=False)
    finally:
        llm.shutdown()


def test_other_encoders_of_ovis_are_refused_by_name(tmp_path: Path) -> None:
    seeing.settings("ovis", tmp_path)
    file = tmp_path / "config.json"
    said = json.loads(file.read_text())
    said["visual_tokenizer_config"]["backbone_config"]["model_type"] = "siglip_vision_model"
    file.write_text(json.dumps(said))
    config = read_config(tmp_path)
    with pytest.raises(UnsupportedModelError, match="model_type: 'siglip_vision_model': only aimv2 is supported"):
        registry.family(config)(config)


@pytest.mark.parametrize(("key", "value"), [("pad_during_tiling", True), ("use_thumbnail", False)])
def test_other_tiles_of_eagle_2_5_are_refused_by_name(key: str, value: bool, tmp_path: Path) -> None:
    seeing.settings("eagle2.5", tmp_path)
    file = tmp_path / "preprocessor_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), key: value}))
    with pytest.raises(UnsupportedModelError, match=key):
        processor(read_config(tmp_path), tmp_path)
