"""Tasks of the video decoding process (`video_process`), and the error messages of failed tasks."""

from __future__ import annotations

import msgspec

from thalweg.host.jobs import MEMORY as NO_MEMORY
from thalweg.media.decoders.base import FailureWords
from thalweg.media.decoders.image import MOST_PIXELS, Picture
from thalweg.media.videos import AnyVideo, VideoFacts

PROCESS = "thalweg.media.decoders.video_process"
MOST_BYTES = 150 << 20
"""Bytes of the pixels of all frames that a model sees of a video."""
WORDS = FailureWords(
    overran="took longer than {seconds} seconds to decode; send a shorter or smaller video",
    crashed="crashed the process that decoded it",
    lost="the process that decodes videos was lost or stood still; try again",
    refusals={
        "format": "is no video that is decoded here: send MP4, WebM or an animated GIF",
        "stream": "has no video stream, or its header is damaged",
        "codec": "has a codec that is not decoded here: send H.264, HEVC, VP8, VP9, AV1, MPEG-4 or GIF",
        "broken": "is a damaged or incomplete video",
        "pixels": f"has frames of {{detail}} pixels; the limit is {MOST_PIXELS >> 20} Mi pixels: send a smaller video",
        "frames": f"has {{detail}} MiB of frames after resizing; the limit is {MOST_BYTES >> 20} MiB: ask for fewer frames "
        "(num_frames or fps) or smaller ones",
        "shape": "{detail}",
        NO_MEMORY: "needs more than {memory} MiB of memory to decode; send a smaller video",
    },
    missing={"library": "videos need the libraries PyAV and Pillow on the server: pip install 'thalweg[video]'"},
)


class VideoTask(msgspec.Struct, frozen=True, kw_only=True):
    """One video."""

    data: bytes
    processor: AnyVideo
    most_pixels: int = MOST_PIXELS
    """Of a frame."""
    most_bytes: int = MOST_BYTES


class DecodedVideo(msgspec.Struct, frozen=True):
    """The chosen frames, as the processor resizes them. A frame chosen several times is here as often."""

    facts: VideoFacts
    frames: list[Picture]
