"""Images: files, URLs and arrays in, views and placeholders out. `media/processors` says how each family cuts them."""

from __future__ import annotations

import hashlib
import io
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from thalweg.checkpoint.config import Config
from thalweg.engine.messages import Input
from thalweg.errors import RequestError
from thalweg.hal.step import StepBatch
from thalweg.media import joined_patches, patches
from thalweg.media.decoders.image import WHITE
from thalweg.media.gate import check_size, decode_base64
from thalweg.media.images import Image, ImageLoader
from thalweg.media.kinds.base import READERS, MediaKind, MediaReader, MediaSettings, MediaSource, PartType, read_url
from thalweg.media.processors import Processor, Size, processor
from thalweg.media.processors.base import ImageProcessor
from thalweg.media.videos import video_settings

BACKGROUND = "rgba_background_color"


class ImageReader(MediaReader):
    def __init__(self, kind: str, processor: Processor, settings: MediaSettings) -> None:
        self._kind, self._processor, self._uncut, self.number = kind, processor, settings.uncut, processor.number
        self.prefix, self.source, self.bare = processor.prefix, processor.source, processor.bare
        self.first_id = processor.first_id
        self.single, self.reads_text, self.numbered = processor.single, processor.reads_text, processor.numbered
        self._images = ImageLoader(processor, settings.kept_bytes, read_background(settings.decoding.get(kind, {})), READERS)

    def read(self, source: MediaSource, data: bytes) -> Image:
        background = read_background(source.decoding) if BACKGROUND in source.decoding else None
        return self._images.read(data, source.at, source.name, background)

    def count(self, value: Image) -> int:
        return self._processor.count(value.size)

    def join(self, text: str, adjacent: bool, following: str) -> str:
        return self._processor.join(text, adjacent, following)

    def complete(self, prompt: str) -> str:
        return self._processor.complete(prompt)

    def write_text(self, value: Image, token_of: Callable[[int], str]) -> str:
        return write_image(self._processor, value.size, token_of)

    def make_inputs(self, value: Image, positions: np.ndarray) -> list[Input]:
        if self.source:
            return [make_source(self._kind, self._processor, value, int(positions[0]) if positions.size else 0)]
        return [make_image_input(self._kind, self._processor, value, positions, self._uncut)]

    def arrange(self, item: Input, ids: Sequence[int], text: str) -> Input:
        if self._processor.reads_text:
            item = add_text(self._processor, item, text)
        found = self._processor.frame(read_size(item), ids, item.positions) if item.positions.size else None
        if found is None:
            return item
        return msgspec.structs.replace(item, axes=found.axes, extent=found.extent, lead=found.lead, tail=found.tail)

    def forget(self) -> None:
        self._images.forget()

    def close(self) -> None:
        self._images.close()


class ImageKind(MediaKind):
    name, plural = "image", "images"
    unsupported = "images are not supported by this model, which accepts audio"
    part_types = {
        "image_url": PartType("image_url", "detailed url"), "input_image": PartType("image_url", "detailed url"),
        "image": PartType("image", "object"), "image_pil": PartType("image_pil", "object"),
    }  # fmt: skip
    encoder = "vision"
    named = settable = per_request = True

    def load_processor(self, config: Config, path: Path) -> Processor | None:
        return processor(config, path, video_settings(config))

    def open_reader(self, processor: Processor, settings: MediaSettings) -> ImageReader:
        return ImageReader(self.name, processor, settings)

    def read_part(self, part: Mapping[str, Any], at: str) -> MediaSource:
        kind = self.part_types[part["type"]]
        if kind.form != "object":
            return MediaSource(self.name, at, url=read_url(part, kind.field, at, "data:image/png;base64,..."))
        if isinstance(options := part.get("source"), Mapping):
            return self._read_source(options, at)
        found = part.get(kind.field, part.get("url"))
        if found is None:
            raise RequestError(f"{at}: has no image", at)
        return self.read_object(found, at)

    def _read_source(self, options: Mapping[str, Any], at: str) -> MediaSource:
        """As Anthropic's Messages API writes it."""
        if options.get("type") == "base64" and isinstance(options.get("data"), str):
            return MediaSource(self.name, at, data=decode_base64(options["data"], at))
        if options.get("type") == "url" and isinstance(options.get("url"), str):
            return MediaSource(self.name, at, url=options["url"])
        raise RequestError(f"{at}.source: must be of type base64, with data, or url, with a url", at)

    def read_object(self, value: Any, at: str, name: str = "") -> MediaSource:
        if value is None and name:
            return MediaSource(self.name, at, name=name)
        if isinstance(value, str):
            return MediaSource(self.name, at, url=value, name=name)
        if isinstance(value, bytes | bytearray):
            return MediaSource(self.name, at, data=check_size(bytes(value), at), name=name)
        if isinstance(value, np.ndarray):
            return MediaSource(self.name, at, data=check_size(_encode_png(value, at), at), name=name)
        if hasattr(value, "save") and hasattr(value, "mode"):  # one of PIL's, which is not imported here
            file = io.BytesIO()
            value.save(file, format="PNG", compress_level=1)
            return MediaSource(self.name, at, data=check_size(file.getvalue(), at), name=name)
        raise RequestError(f"{at}: must be a URL, the bytes of a file, a PIL image or an array, not {type(value).__name__}", at)

    def check_decoding(self, given: Mapping[str, Any]) -> list[str]:
        problems = []
        for key, value in given.items():
            three = isinstance(value, list | tuple) and len(value) == 3
            if key != BACKGROUND:
                problems.append(f"{key!r:.60} is not known; this version has {BACKGROUND}")
            elif not three or not all(type(v) is int and 0 <= v < 256 for v in value):
                problems.append(f"{key} must be three numbers from 0 to 255, not {value!r:.60}")
        return problems

    def is_bidirectional(self, processor: Processor) -> bool:
        return processor.together

    def build_batches(self, processor: Processor, spec: Any, items: Sequence[Input]) -> tuple[StepBatch, ...]:
        return pack_batches(spec, [processor.preprocess(item.data, read_size(item)) for item in items])

    def count_rows(self, processor: Processor, item: Input) -> int | None:
        if processor.separate:
            return None
        rows: int = sum(v.shape[0] // processor.patch * (v.shape[1] // processor.patch) for v in item.data)
        return rows


IMAGE = ImageKind()


def read_background(decoding: Mapping[str, Any]) -> tuple[int, int, int]:
    """The colour that replaces transparency, from an image's part of `media_io_kwargs`."""
    red, green, blue = decoding.get(BACKGROUND, WHITE)
    return red, green, blue


def read_size(item: Input) -> Size:
    return item.size[0], item.size[1]


def pack_batches(spec: Any, each: Sequence[patches.PatchInputs]) -> tuple[StepBatch, ...]:
    """The batches of a vision encoder for pictures encoded together. spec: the encoder as the model declares it."""
    shrinks = 1 if spec.shrinks is None else spec.shrinks[1].group
    whole = patches.batch(joined_patches.together(each, spec.projector.group, shrinks))
    merged = () if spec.shrinks is None else (patches.shrunk(whole, shrinks),)
    return (whole, patches.windows(whole), *merged)


def write_image(processor: Processor, size: Size, token_of: Callable[[int], str]) -> str:
    """The text of an image of this size in the prompt."""
    before, behind = (token_of(each) for each in processor.edges) if processor.edges else ("", "")
    return f"{before}{processor.text(size, token_of(processor.token))}{behind}"


def make_source(kind: str, processor: Processor, image: Image, position: int) -> Input:
    """An image as the source of cross-attention. position: of its placeholder."""
    data = processor.source_array(image.views, image.size, position)
    return Input(kind=kind, digest=image.digest, positions=np.zeros(0, np.int32), data=(data,), size=image.size, most_a_step=1)


def add_text(processor: ImageProcessor, item: Input, text: str) -> Input:
    """An image whose encoder reads the prompt's text. Its digest is that of both. RequestError."""
    try:
        data = processor.add_text(item.data, text)
    except ValueError as e:
        raise RequestError(f"prompt: {e}", "prompt") from e
    digest = hashlib.blake2b(key=item.digest, digest_size=len(item.digest))
    for each in data[len(item.data) :] or data:
        digest.update(each.tobytes())
    return msgspec.structs.replace(item, data=data, digest=digest.digest())


def make_image_input(kind: str, processor: Processor, image: Image, positions: np.ndarray, uncut: bool) -> Input:
    axes, extent = compute_axes(processor, image.size, positions)
    return Input(
        kind=kind, digest=image.digest, positions=positions, data=image.views, size=image.size, uncut=uncut,
        bidirectional=processor.together, axes=axes, extent=extent,
    )  # fmt: skip


def compute_axes(processor: ImageProcessor, size: Size, positions: np.ndarray) -> tuple[np.ndarray | None, int]:
    """`Input.axes` and `Input.extent` of an image of this size. Its time is that of its first token. The text after it
    continues behind its longer edge."""
    grid = processor.grid(size)
    if grid is None:
        return None, 0
    down, across = np.divmod(np.arange(int(positions[-1]) + 1 - int(positions[0]), dtype=np.int32), grid[0])
    return np.stack([np.zeros_like(down), down, across], 1), max(grid)


def _encode_png(image: np.ndarray, at: str) -> bytes:
    """u8[height, width, 3] as a PNG file, which every reader reads alike."""
    if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8 or not image.size:
        shape = " x ".join(map(str, image.shape))
        raise RequestError(f"{at}: an array must be u8[height, width, 3], not {image.dtype}[{shape}]", at)
    height, width, _ = image.shape

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack("!I", len(body)) + kind + body + struct.pack("!I", zlib.crc32(kind + body))

    rows = np.concatenate([np.zeros((height, 1), np.uint8), image.reshape(height, -1)], 1)
    head = struct.pack("!IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows.tobytes(), 1)) + chunk(b"IEND", b"")
