"""Tasks of the image decoding process (`image_process`), and the error messages of failed tasks."""

from __future__ import annotations

import msgspec

from thalweg.host.jobs import MEMORY as NO_MEMORY
from thalweg.media.decoders.base import FailureWords
from thalweg.media.processors import Processor

Colour = tuple[int, int, int]
WHITE = (255, 255, 255)
PROCESS = "thalweg.media.decoders.image_process"
MOST_PIXELS = 1 << 26
"""Pixels that an image may announce. They are decoded whole before anything is made smaller."""
WORDS = FailureWords(
    overran="took longer than {seconds} seconds to read",
    crashed="crashed the process that read it",
    lost="the process that reads images was lost or stood still; try again",
    refusals={
        "format": "is no image that is read here: send PNG, JPEG, WebP or GIF",
        "broken": "is a damaged or incomplete image",
        "pixels": f"has {{detail}} pixels; the limit is {MOST_PIXELS >> 20} Mi pixels: send a smaller image",
        "shape": "{detail}",
        NO_MEMORY: "needs more than {memory} MiB of memory to read; send a smaller image",
    },
    missing={"library": "images need the library Pillow on the server: pip install 'thalweg[images]'"},
)


class ImageTask(msgspec.Struct, frozen=True, kw_only=True):
    """One image."""

    data: bytes
    processor: Processor
    most_pixels: int = MOST_PIXELS
    background: Colour = WHITE
    """Replaces transparency."""


class Picture(msgspec.Struct, frozen=True):
    """Three bytes a pixel, row by row."""

    width: int
    height: int
    data: bytes


class Views(msgspec.Struct, frozen=True):
    """Views that the processor requests of the image. size: its width and height, upright."""

    views: list[Picture]
    size: tuple[int, int]
