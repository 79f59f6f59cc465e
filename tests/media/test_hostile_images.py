"""Files that were made to do harm: each costs its own request a refusal, and the next image is read as ever."""

from __future__ import annotations

import contextlib
import io
import re
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

Image = pytest.importorskip("PIL.Image", reason="images need Pillow: pip install 'thalweg[images]'")

from thalweg.errors import RequestError  # noqa: E402
from thalweg.media import images as module  # noqa: E402
from thalweg.media.images import ImageLoader  # noqa: E402
from thalweg.media.processors import Pixtral  # noqa: E402

AT = "messages[0].content[0]"
PIXTRAL = Pixtral(
    token=1, patch=14, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5), scale=1 / 255, resample=3, longest=56, merge=1, head_dim=16,
    theta=1e4,
)  # fmt: skip
LEAKS = re.compile(r"0x[0-9a-f]|Traceback|PIL|<_io|/usr|site-packages|Error", re.IGNORECASE)


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack("!I", len(body)) + kind + body + struct.pack("!I", zlib.crc32(kind + body))


def png(width: int, height: int, rows: bytes = b"", *more: bytes) -> bytes:
    head = chunk(b"IHDR", struct.pack("!IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(more) + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b"")


def saved(image: Any, kind: str, **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, format=kind, **options)
    return out.getvalue()


RGB = Image.fromarray(np.random.default_rng(0).integers(0, 255, (28, 42, 3)).astype(np.uint8))


@pytest.fixture(scope="module")
def reader() -> Iterator[ImageLoader]:
    made = ImageLoader(PIXTRAL)
    yield made
    made.close()


HOSTILE = {
    "bomb": png(50_000, 50_000, bytes(1 << 20)),
    "huge header": png(2**31 - 1, 2**31 - 1),
    "no size": png(0, 0),
    "lies of its size": png(3000, 3000, bytes(100)),
    "text bomb": png(4, 4, bytes(52), chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(64 << 20), 9))),
    "profile bomb": png(4, 4, bytes(52), chunk(b"iCCP", b"a\0\0" + zlib.compress(bytes(64 << 20), 9))),
    "truncated png": saved(RGB, "PNG")[:-200],
    "truncated jpeg": saved(RGB, "JPEG")[:300],
    "truncated webp": saved(RGB, "WEBP")[:100],
    "tiff": saved(RGB, "TIFF"),
    "bmp": saved(RGB, "BMP"),
    "ppm": saved(RGB, "PPM"),
    "eps": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n",
    "svg": b"<svg xmlns='http://www.w3.org/2000/svg'><image href='file:///etc/passwd'/></svg>",
    "nothing": b"\0",
    "text": b"hello" * 1000,
    "a line": saved(Image.new("RGB", (3000, 2)), "PNG"),
}


def read_or_refused(reader: ImageLoader, data: bytes) -> None:
    words = ""
    with contextlib.suppress(RequestError):
        try:
            reader.read(data, AT)
        except RequestError as e:
            words = str(e)
            raise
    assert not LEAKS.search(words)


@pytest.mark.parametrize("name", sorted(HOSTILE))
@pytest.mark.slow
def test_hostile_files_cost_their_own_request_alone(name: str, reader: ImageLoader) -> None:
    if name.endswith("bomb") and name != "bomb":  # what the library leaves unread harms nobody
        read_or_refused(reader, HOSTILE[name])
    else:
        with pytest.raises(RequestError, match=re.escape(AT)) as error:
            reader.read(HOSTILE[name], AT)
        assert not LEAKS.search(str(error.value))
    assert reader.read(saved(RGB, "PNG"), AT).views[0].shape == (28, 42, 3)


def test_random_damage_is_refused_or_read(reader: ImageLoader) -> None:
    rng = np.random.default_rng(5)
    for kind in ("PNG", "JPEG", "WEBP", "GIF"):
        whole = np.frombuffer(saved(RGB, kind), np.uint8)
        for _ in range(12):
            bad = whole.copy()
            bad[rng.integers(0, len(bad), 6)] = rng.integers(0, 255, 6)
            read_or_refused(reader, bad.tobytes())
    assert reader.read(saved(RGB, "PNG"), AT).views[0].shape == (28, 42, 3)


@pytest.mark.slow  # a large image, read twice
def test_too_much_time_and_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    large = saved(Image.new("RGB", (6000, 6000)), "PNG")
    reader = ImageLoader(PIXTRAL)
    try:
        monkeypatch.setattr(module, "MEMORY", 16 << 20)
        with pytest.raises(RequestError, match=r"MiB of memory|damaged"):
            reader.read(large, AT)
        monkeypatch.undo()
        monkeypatch.setattr(module, "SECONDS", 0.02)
        with pytest.raises(RequestError, match="took longer"):
            reader.read(large, AT)
        monkeypatch.undo()
        assert reader.read(saved(RGB, "PNG"), AT).views[0].shape == (28, 42, 3)
    finally:
        reader.close()


def test_what_an_image_shows_is_what_counts(reader: ImageLoader) -> None:
    """Upright, on white, in three channels of 8 bits, whatever the file has."""
    flat = np.asarray(RGB)
    plain = reader.read(saved(RGB, "PNG"), AT)
    np.testing.assert_array_equal(plain.views[0], flat)
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    turned = reader.read(saved(RGB, "PNG", exif=exif), AT).views[0]
    np.testing.assert_array_equal(turned, np.rot90(flat, -1))
    clear = RGB.convert("RGBA")
    clear.putalpha(0)
    assert (reader.read(saved(clear, "PNG"), AT).views[0] == 255).all()
    for mode in ("L", "LA", "P", "1", "I;16"):
        shown = reader.read(saved(RGB.convert("L").convert("I;16") if mode == "I;16" else RGB.convert(mode), "PNG"), AT).views[
            0
        ]
        assert shown.shape == flat.shape
    assert reader.read(saved(RGB.convert("CMYK"), "JPEG"), AT).views[0].shape == flat.shape
    frames = saved(RGB, "GIF", save_all=True, append_images=[Image.new("RGB", RGB.size)] * 50)
    assert reader.read(frames, AT).views[0].std() > 10  # the first, and not one of those after it


def test_digests_frame_what_they_cover(reader: ImageLoader) -> None:
    """Equal bytes in another shape, or for other settings, are another image; other bytes are, and another client's secret."""
    square, wide, tall = (
        reader.read(saved(Image.new("RGB", size, (9, 9, 9)), "PNG"), AT) for size in ((28, 28), (56, 14), (14, 56))
    )
    assert len({square.digest, wide.digest, tall.digest}) == 3
    again = reader.read(saved(Image.new("RGB", (28, 28), (9, 9, 9)), "WEBP", lossless=True), AT)
    assert again.digest == square.digest
    other = ImageLoader(PIXTRAL)
    assert other._digests.of_arrays(square.size, *square.views) != square.digest
    same, resized = (reader._digests.of_arrays(size, *square.views) for size in (square.size, (56, 28)))
    assert same == square.digest != resized
    other.close()
