"""The process in which images are read: `python -m thalweg.media.cell`, jobs on stdin, answers on stdout.

A few codecs, all imported before the first job, because nothing can be opened afterwards. The size that a header announces is
checked before a pixel is decoded. What a library says of a file is never passed on.
"""

from __future__ import annotations

import gc
import io
import sys
from functools import partial

import msgspec

from thalweg.host.confined import Confined
from thalweg.media.processors import Processor, Size, View
from thalweg.media.wire import WHITE, Colour, Done, Job, Picture, Refused, frame

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
KEPT_BYTES = 64 << 20
"""Bytes of growth after which a process retires."""


class RefusedError(Exception):
    def __init__(self, reply: Refused) -> None:
        self.reply = reply


def pictures(data: bytes, processor: Processor, most_pixels: int, background: Colour = WHITE) -> Done:
    """The views of one image, upright and without transparency. RefusedError."""
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
    except MemoryError:
        raise
    except Exception:
        raise RefusedError(Refused("format")) from None
    width, height = image.size
    if width * height > most_pixels:
        raise RefusedError(Refused("pixels", f"{width} x {height}"))
    try:
        image.load()
        upright = _opaque(ImageOps.exif_transpose(image), background)
    except MemoryError:
        raise
    except Exception:
        raise RefusedError(Refused("broken")) from None
    try:
        views = processor.views(*upright.size)
    except ValueError as e:
        raise RefusedError(Refused("shape", str(e))) from None
    resized: dict[tuple[Size, ...], Image.Image] = {}
    return Done([_view(upright, view, processor.resample, resized) for view in views], upright.size)


def _view(image: Image.Image, view: View, resample: int, resized: dict[tuple[Size, ...], Image.Image]) -> Picture:
    """resized: what earlier views made of the image, by the sizes that it went through. Tiles are cut out of one."""
    for n, size in enumerate(view.sizes, 1):
        made = resized.get(view.sizes[:n])
        if made is None:
            made = image if image.size == size else image.resize(size, Image.Resampling(resample))
            resized[view.sizes[:n]] = made
        image = made
    if view.box is not None:
        image = image.crop(view.box)
    return Picture(image.width, image.height, image.tobytes())


def _opaque(image: Image.Image, background: Colour) -> Image.Image:
    """Three channels of 8 bits. What is transparent shows the background."""
    if image.mode.startswith("I;16") or image.mode == "I":
        image = image.convert("I").point(lambda value: value * (1 / 256)).convert("L")
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        above = image.convert("RGBA")
        below = Image.new("RGBA", above.size, (*background, 255))
        below.alpha_composite(above)
        return below.convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")


def answer(process: Confined, job: Job) -> Done | Refused:
    if not READY:
        return Refused("library", last=True)
    with process.limited(job.seconds, job.wall, job.memory):
        try:
            done = pictures(job.data, job.processor, job.most_pixels, job.background)
        except MemoryError:
            process.limit_memory(None)
            return Refused("memory", last=True)
        except RefusedError as e:
            return msgspec.structs.replace(e.reply, last=process.grown() > KEPT_BYTES)
    return msgspec.structs.replace(done, last=process.grown() > KEPT_BYTES)


def _framed(reply: Done | Refused) -> bytes:
    try:
        return frame(reply)
    except ValueError:
        return frame(Refused("memory", last=True))


def main() -> int:
    if READY:
        Image.preinit()
    process = Confined()
    gc.freeze()
    return process.serve(msgspec.msgpack.Decoder(Job).decode, partial(answer, process), _framed)


if __name__ == "__main__":
    sys.exit(main())
