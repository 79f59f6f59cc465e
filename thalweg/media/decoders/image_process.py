"""The process in which images are decoded: `python -m thalweg.media.decoders.image_process`.

A few codecs, all imported before the first task, because nothing can be opened afterwards. The size in the header is checked
before a pixel is decoded. Error texts of libraries are never passed on.
"""

from __future__ import annotations

import io
import sys

from thalweg.host.jobs import TaskRefusedError, serve
from thalweg.media.decoders.image import WHITE, Colour, ImageTask, Picture, Views
from thalweg.media.processors import Processor, Size, View

try:
    from PIL import GifImagePlugin, Image, ImageOps, JpegImagePlugin, MpoImagePlugin, PngImagePlugin, TiffImagePlugin
    from PIL import WebPImagePlugin as WebP
except ImportError:
    READY = False
else:
    READY = True
    _PLUGINS = (GifImagePlugin, JpegImagePlugin, MpoImagePlugin, PngImagePlugin, TiffImagePlugin, WebP)
    Image.MAX_IMAGE_PIXELS = None  # sizes are checked here

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
"""Of files with several pictures the first is taken."""


def pictures(data: bytes, processor: Processor, most_pixels: int, background: Colour = WHITE) -> Views:
    """The views of one image, upright and without transparency. TaskRefusedError."""
    return make_views(open_image(data, most_pixels), processor, background)


def open_image(data: bytes, most_pixels: int, formats: tuple[str, ...] = FORMATS) -> Image.Image:
    """A file of which no pixel has been decoded. TaskRefusedError."""
    if not READY:
        raise TaskRefusedError("library")
    try:
        image = Image.open(io.BytesIO(data), formats=formats)
    except MemoryError:
        raise
    except Exception:
        raise TaskRefusedError("format") from None
    width, height = image.size
    if width * height > most_pixels:
        raise TaskRefusedError("pixels", f"{width} x {height}")
    return image


def make_views(image: Image.Image, processor: Processor, background: Colour) -> Views:
    """The views of an image, or of the picture that a file of several is at. TaskRefusedError."""
    try:
        image.load()
        upright = _opaque(ImageOps.exif_transpose(image), background)
    except MemoryError:
        raise
    except Exception:
        raise TaskRefusedError("broken") from None
    try:
        views = processor.views(*upright.size)
    except ValueError as e:
        raise TaskRefusedError("shape", str(e)) from None
    resized: dict[tuple[object, ...], Image.Image] = {}
    return Views([_view(upright, view, processor, resized) for view in views], upright.size)


def _view(image: Image.Image, view: View, processor: Processor, resized: dict[tuple[object, ...], Image.Image]) -> Picture:
    """resized: results of earlier views of the image, by their parts and the sizes that they went through. Tiles are cut from
    one result."""
    if view.part is not None:
        image = image.crop(view.part)
    for n, size in enumerate(view.sizes, 1):
        result = resized.get(key := (view.part, *view.sizes[:n]))
        if result is None:
            result = image if image.size == size else _resize(image, size, processor)
            resized[key] = result
        image = result
    if view.box is not None and view.fill is not None:
        left, top, right, bottom = view.box
        whole = Image.new("RGB", (right - left, bottom - top), view.fill)
        whole.paste(image, (-left, -top))
        image = whole
    elif view.box is not None:
        image = image.crop(view.box)
    if view.after is not None and view.after != image.size:
        image = _resize(image, view.after, processor)
    return Picture(image.width, image.height, image.tobytes())


def _resize(image: Image.Image, size: Size, processor: Processor) -> Image.Image:
    if not processor.sampled:
        return image.resize(size, Image.Resampling(processor.resample))
    wide, high = image.width / size[0], image.height / size[1]
    bands = []
    for band in image.split():
        exact = band.convert("F").transform(size, Image.Transform.AFFINE, (wide, 0, 0, 0, high, 0), Image.Resampling.BILINEAR)
        whole = exact.point(lambda value: value * 1 + ROUNDS).point(lambda value: value * 1 - ROUNDS)
        bands.append(whole.convert("L"))
    return Image.merge("RGB", bands)


ROUNDS = 12_582_912.0
"""1.5 * 2 ** 23: a float32 of this size has no places behind the point, so adding it rounds to the nearest even number."""


def _opaque(image: Image.Image, background: Colour) -> Image.Image:
    """Three channels of 8 bits. Transparency shows the background."""
    if image.mode.startswith("I;16") or image.mode == "I":
        image = image.convert("I").point(lambda value: value * (1 / 256)).convert("L")
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        above = image.convert("RGBA")
        below = Image.new("RGBA", above.size, (*background, 255))
        below.alpha_composite(above)
        return below.convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")


def work(task: ImageTask) -> Views:
    return pictures(task.data, task.processor, task.most_pixels, task.background)


def load_codecs() -> None:
    """Import the codecs, as nothing can be opened later."""
    if READY:
        Image.preinit()


if __name__ == "__main__":
    load_codecs()
    sys.exit(serve(ImageTask, work))
