"""PerceptionLM: settings of its encoders, and the tiles of an image."""

from __future__ import annotations

from typing import Any

import numpy as np
import pillow_processors
import pytest

from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.media.processors.perception_lm import perception_lm, read_encoder

LARGE, GIGANTIC = "vit_pe_lang_large_patch14_448", "vit_pe_lang_gigantic_patch14_448"


def config(name: str = LARGE, whole: bool = True, **args: Any) -> dict[str, Any]:
    eye = {"model_type": "timm_wrapper", "architecture": name, "model_args": args}
    return {"vision_config": eye, "vision_use_cls_token": whole, "projector_pooling_ratio": 2}


def test_an_encoder_has_the_sizes_of_its_name() -> None:
    """Those of timm 1.0.31, which is not installed."""
    large, gigantic = read_encoder(config()), read_encoder(config(GIGANTIC, False))
    assert (large.hidden, large.layers, large.inner, large.whole, large.first) == (1024, 23, 4096, True, 1.0)
    assert (gigantic.hidden, gigantic.layers, gigantic.inner, gigantic.whole, gigantic.first) == (1536, 47, 8960, False, 0.0)
    assert read_encoder(config(depth=5, ref_feat_shape=[64, 64])).stretch == 2.0


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (config("resnet50"), "architecture 'resnet50': supported: vit_pe_lang"),
        (config(img_size=[448, 224]), "img_size: .* is no square"),
        (config(use_post_transformer_norm=True), "only a norm before the layers"),
        (config(whole=False), "vision_use_cls_token: must be true"),
        (config(img_size=[462, 462], ref_feat_shape=[33, 33]), "tile_size: the encoder requires squares of 462"),
        ({**config(), "projector_pooling_ratio": 5}, "projector_pooling_ratio: 5 must divide"),
    ],
)
def test_odd_settings_are_refused_by_name(said: dict[str, Any], words: str) -> None:
    with pytest.raises((CheckpointError, UnsupportedModelError), match=words):
        perception_lm(said, {})


def test_images_are_cut_as_transformers_cuts_them() -> None:
    ours, theirs = perception_lm(config(), {}), pillow_processors.processor("perception_lm", "PerceptionLMImageProcessor")()
    rng = np.random.default_rng(4)
    sizes = [(448, 448), (1, 1), (900, 448), (448, 897), (9000, 60), (60, 9000), (16_128, 448), (20_000, 19_000)]
    for width, height in (*sizes, *rng.integers(20, 3000, (40, 2)).tolist()):
        want = theirs._fit_image_to_canvas(img_width=width, img_height=height, tile_size=448)
        want = want or theirs._find_closest_aspect_ratio(img_width=width, img_height=height, tile_size=448)
        assert ours._tiling(width, height) == want
