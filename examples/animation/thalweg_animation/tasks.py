"""Tasks of the process that decodes animations (`process`), and what is said where one fails."""

from __future__ import annotations

import msgspec

from thalweg.media.decoders.base import FailureWords
from thalweg.media.decoders.image import MOST_PIXELS, Views
from thalweg.media.decoders.image import WORDS as OF_IMAGES
from thalweg.media.processors import QwenVL

PROCESS = "thalweg_animation.process"
FRAMES = 8
"""Frames of an animation, unless --media-io-kwargs says otherwise. One that has fewer is shown whole."""
WORDS = FailureWords(
    overran="took longer than {seconds} seconds to read",
    crashed="crashed the process that read it",
    lost="the process that reads animations was lost or stood still; try again",
    refusals={
        **OF_IMAGES.refusals, "format": "is no animation that is read here: send an animated GIF",
        "broken": "is a damaged or incomplete animation",
    },
    missing=OF_IMAGES.missing,
)  # fmt: skip


class AnimationTask(msgspec.Struct, frozen=True, kw_only=True):
    data: bytes
    processor: QwenVL
    frames: int
    """At most so many are taken, the first and the last among them."""
    most_pixels: int = MOST_PIXELS


class Film(msgspec.Struct, frozen=True):
    frames: list[Views]
