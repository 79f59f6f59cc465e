"""The process in which videos are decoded: `python -m thalweg.media.decoders.video_process`.

The container is known by its first bytes, and few containers and codecs are opened: no playlist, and nothing that names other
files. Sizes and the number of frames are checked before a frame is decoded. Error texts of libraries are never passed on.
"""

from __future__ import annotations

import base64
import io
import sys
from typing import Any

from thalweg.host.jobs import TaskRefusedError, serve
from thalweg.media.decoders.image import Picture
from thalweg.media.decoders.video import DecodedVideo, VideoTask
from thalweg.media.processors import View
from thalweg.media.videos import AnyVideo, VideoFacts

try:
    import av
    from PIL import Image
except ImportError:
    READY = False
else:
    READY = True
    av.logging.set_level(av.logging.PANIC)  # its messages quote the file

CODECS = ("h264", "hevc", "vp8", "vp9", "av1", "libdav1d", "mpeg4", "gif", "libvpx", "libvpx-vp9")
FPS = 24.0
"""Of a file that does not say."""
MOST_FPS = 1000.0
PIXEL = "R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"
"""A GIF of one pixel, in base64."""


def container_of(data: bytes) -> str:
    """FFmpeg's name of the container. TaskRefusedError."""
    if data[4:8] == b"ftyp":
        return "mp4"
    if data[:4] == b"\x1a\x45\xdf\xa3":
        return "matroska"
    if data[:6] in (b"GIF87a", b"GIF89a"):
        return "gif"
    raise TaskRefusedError("format")


def work(task: VideoTask) -> DecodedVideo:
    if not READY:
        raise TaskRefusedError("library")
    kind = container_of(task.data)
    try:
        total = count_frames(task.data, kind)
        with _open(task.data, kind) as container:
            stream = container.streams.video[0]
            stream.codec_context.thread_count = 1
            facts, views = _plan(task, stream, total)
            frames = _decode(container.decode(stream), facts, views, task.processor.frames.resample)
    except (MemoryError, TaskRefusedError):
        raise
    except Exception:
        raise TaskRefusedError("broken") from None
    return DecodedVideo(facts, frames)


def count_frames(data: bytes, kind: str) -> int:
    """Frames of a file, decoding none: by its packets, as headers may be wrong or silent. TaskRefusedError."""
    with _open(data, kind) as container:
        if not container.streams.video:
            raise TaskRefusedError("stream")
        stream = container.streams.video[0]
        if stream.codec_context.name not in CODECS:
            raise TaskRefusedError("codec")
        return sum(packet.size > 0 for packet in container.demux(stream))


def _open(data: bytes, kind: str) -> Any:
    """The container. kind: as of `container_of`, so that FFmpeg guesses none."""
    return av.open(io.BytesIO(data), mode="r", format=kind)


def _plan(task: VideoTask, stream: Any, total: int) -> tuple[VideoFacts, tuple[View, ...]]:
    """The facts of a video, and the views of each of its frames. TaskRefusedError."""
    width, height = stream.codec_context.width, stream.codec_context.height
    if not total or not width or not height:
        raise TaskRefusedError("broken")
    if width * height > task.most_pixels:
        raise TaskRefusedError("pixels", f"{width} x {height}")
    fps = min(float(stream.average_rate or stream.guessed_rate or FPS), MOST_FPS)
    facts = VideoFacts(total, fps, width, height)
    chosen, views = choose_views(task.processor, facts)
    size = sum(_pixels(view) for view in views) * 3 * len(chosen)
    if size > task.most_bytes:
        raise TaskRefusedError("frames", str(size >> 20))
    return VideoFacts(total, fps, width, height, tuple(chosen)), views


def choose_views(processor: AnyVideo, facts: VideoFacts) -> tuple[list[int], tuple[View, ...]]:
    """The chosen frames, and the views of each. TaskRefusedError."""
    chosen = processor.choose(facts)
    try:
        return chosen, processor.frame(len(chosen)).views(*facts.size)
    except ValueError as e:
        raise TaskRefusedError("shape", str(e)) from None


def _pixels(view: View) -> int:
    width, height = view.sizes[-1]
    return width * height


def _decode(decoded: Any, facts: VideoFacts, views: tuple[View, ...], resample: int) -> list[Picture]:
    """Frames that a damaged end lacks are those before it. TaskRefusedError if there are none."""
    frames, times = list[Picture](), {number: facts.chosen.count(number) for number in facts.chosen}
    for number, frame in enumerate(decoded):
        if number in times:
            image = frame.to_image(width=facts.width, height=facts.height)
            for view in views:
                for size in view.sizes:
                    image = image if image.size == size else image.resize(size, Image.Resampling(resample))
            frames += [Picture(image.width, image.height, image.tobytes())] * times[number]
        if len(frames) == len(facts.chosen):
            break
    if not frames:
        raise TaskRefusedError("broken")
    return frames + [frames[-1]] * (len(facts.chosen) - len(frames))


def load_codecs() -> None:
    """Import what PyAV and Pillow import on use, by decoding a picture of one pixel, as nothing can be opened later."""
    if READY:
        data = base64.b64decode(PIXEL)
        count_frames(data, "gif")
        with _open(data, "gif") as container:
            for frame in container.decode(container.streams.video[0]):
                frame.to_image(width=2, height=2).resize((3, 3), Image.Resampling.BICUBIC).tobytes()


if __name__ == "__main__":
    load_codecs()
    sys.exit(serve(VideoTask, work))
