"""Images that come again are not read again, and settings of images that are not those of the model's files."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

Image = pytest.importorskip("PIL.Image", reason="images need Pillow: pip install 'thalweg[images]'")

from thalweg.config import EngineArgs, check_args  # noqa: E402
from thalweg.engine.client.media import _names  # noqa: E402
from thalweg.errors import ConfigError, RequestError  # noqa: E402
from thalweg.media.images import ImageLoader  # noqa: E402
from thalweg.media.kinds import check_request_decoding  # noqa: E402
from thalweg.media.kinds.image import IMAGE  # noqa: E402
from thalweg.media.processors import Pixtral, processor  # noqa: E402

AT = "messages[0].content[0]"
PIXTRAL = Pixtral(
    token=1, patch=14, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5), scale=1 / 255, resample=3, longest=56, merge=1, head_dim=16,
    theta=1e4,
)  # fmt: skip
EACH = 28 * 28 * 3


def saved(colour: tuple[int, ...], mode: str = "RGB") -> bytes:
    out = io.BytesIO()
    Image.new(mode, (28, 28), colour).save(out, format="PNG")
    return out.getvalue()


RED, GREEN, CLEAR = saved((255, 0, 0)), saved((0, 255, 0)), saved((0, 0, 0, 0), "RGBA")


@pytest.fixture(scope="module")
def reader() -> Iterator[ImageLoader]:
    made = ImageLoader(PIXTRAL, kept_bytes=2 * EACH, background=(1, 2, 3))
    yield made
    made.close()


@pytest.mark.slow
def test_an_image_that_comes_again_is_the_one_that_is_kept_until_others_need_the_room(reader: ImageLoader) -> None:
    reader.forget()
    red, green = reader.read(RED, AT), reader.read(GREEN, AT)
    assert reader.read(RED, AT) is red
    clear = reader.read(CLEAR, AT)  # in place of green, which was asked for longest ago
    assert reader.read(RED, AT) is red
    assert reader.read(CLEAR, AT) is clear
    again = reader.read(GREEN, AT)
    assert again is not green
    assert again.digest == green.digest
    reader.forget()
    assert reader.read(GREEN, AT) is not again


def test_what_shows_through_is_the_operators_choice(reader: ImageLoader) -> None:
    (view,) = reader.read(CLEAR, AT).views
    assert view[0, 0].tolist() == [1, 2, 3]


def test_a_request_may_choose_what_shows_through(reader: ImageLoader) -> None:
    """And an image kept for another colour is not its answer."""
    usual = reader.read(CLEAR, AT)
    (view,) = reader.read(CLEAR, AT, background=(9, 8, 7)).views
    assert view[0, 0].tolist() == [9, 8, 7]
    assert reader.read(CLEAR, AT).digest == usual.digest
    assert reader.read(RED, AT, background=(9, 8, 7)).digest == reader.read(RED, AT).digest


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"film": {"num_frames": 4}}, "'film': requests may have settings of image, video"),
        ({"audio": {"rate": 4}}, "'audio': requests may have settings of"),
        ({"video": 4}, "'video': must be an object, not 4"),
        ({"video": {"num_frames": 100_000}}, "video: num_frames must be a whole number from 1 to 768, not 100000"),
        ({"image": {"mode": "L"}}, "image: 'mode' is not known"),
    ],
)
def test_settings_of_a_request_are_checked_before_anything_is_read(given: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError, match=words) as error:
        check_request_decoding(given)
    assert error.value.param == "media_io_kwargs"


def test_a_name_stands_for_the_image_that_is_kept(reader: ImageLoader) -> None:
    reader.forget()
    first = reader.read(RED, AT, "mine")
    assert reader.read(b"", AT, "mine") is first
    with pytest.raises(RequestError, match="no image of the name 'yours' is kept"):
        reader.read(b"", AT, "yours")
    assert _names(IMAGE, {"image": ["a", None]}, 2) == ["a", ""]
    for wrong in ({"image": ["a"]}, {"audio": ["a", "b"]}, ["a", "b"], {"image": [1, 2]}):
        with pytest.raises(RequestError, match="multi_modal_uuids"):
            _names(IMAGE, wrong, 2)


def test_settings_of_images_are_replaced_where_the_models_images_have_them(tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"min_pixels": 3136, "max_pixels": 50176}))
    config: dict[str, Any] = {"architectures": ["Qwen2_5_VLForConditionalGeneration"], "vision_config": {"depth": 1}}
    plain = processor(config, tmp_path)
    less = processor({**config, "mm_processor_kwargs": {"max_pixels": 12544}}, tmp_path)
    assert plain is not None
    assert less is not None
    assert plain.count((900, 900)) == 64
    assert less.count((900, 900)) == 16
    with pytest.raises(ConfigError, match="unknown setting 'do_pan_and_scan'"):
        processor({**config, "mm_processor_kwargs": {"do_pan_and_scan": True}}, tmp_path)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"media_io_kwargs": {"film": {"num_frames": 4}}}, "'film'"),
        ({"media_io_kwargs": {"video": {"num_frames": 0}}}, "num_frames must be a whole number from 1 to 768"),
        ({"media_io_kwargs": {"video": {"num_frames": 4, "fps": 1}}}, "num_frames and fps exclude each other"),
        ({"media_io_kwargs": {"image": {"mode": "L"}}}, "'mode' is not known"),
        ({"media_io_kwargs": {"image": {"rgba_background_color": [1, 2]}}}, "three numbers"),
        ({"mm_processor_cache_type": "shm"}, "leave it at lru"),
        ({"mm_processor_cache_gb": -1.0}, "between 0"),
    ],
)
def test_what_cannot_be_had_is_refused_by_name(said: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_args(EngineArgs(**said))
