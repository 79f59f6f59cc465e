"""Images of requests: found in messages and prompts, read behind the gate, and given their places among a prompt's tokens."""

from __future__ import annotations

import asyncio
import io
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from thalweg.engine.messages import Axes, MediaItem
from thalweg.errors import RequestError
from thalweg.media.gate import Gate, checked, decoded
from thalweg.media.images import CELLS, Image, Images
from thalweg.media.processors import Processor
from thalweg.media.wire import WHITE, Colour
from thalweg.template.specials import Span
from thalweg.text.tokenizer import Tokenizer

NAME, UUIDS = "multi_modal_data", "multi_modal_uuids"
MEDIA = "media"
"""Key of a prompt under which images lie that have been read."""
MOST_IMAGES = 16
"""Of one prompt, unless --limit-mm-per-prompt says otherwise."""
MOST_BYTES = 160 << 20
"""Bytes of pixels that a request may send to an engine process, all its choices together."""
PARTS = ("image_url", "input_image", "image", "image_pil")
"""Types of parts of messages that hold an image."""
Expand = Callable[[str, Sequence[Span]], tuple[str, list[Span]]]


@dataclass(frozen=True, slots=True)
class Source:
    """An image that was not read yet. at: its place in the request."""

    at: str
    url: str = ""
    data: bytes = b""
    name: str = ""
    """What the caller calls it. There may be nothing else of one that is kept."""


class Media:
    """What a model that sees needs of a client. Thread-safe."""

    def __init__(
        self, processor: Processor, tokenizer: Tokenizer, gate: Gate, limit: int | None = None, kept_bytes: int = 0,
        background: Colour = WHITE, uncut: bool = False,
    ) -> None:  # fmt: skip
        """limit: images of one prompt. kept_bytes, background: see Images. uncut: an image is computed in one step."""
        self._processor, self._tokenizer, self._gate = processor, tokenizer, gate
        self._limit = MOST_IMAGES if limit is None else limit
        self._images, self._uncut = Images(processor, kept_bytes, background), uncut
        self._threads = ThreadPoolExecutor(CELLS, "media")
        self._token = tokenizer.token_of(processor.token)
        self._marker = processor.marker or self._token
        self._edges = tuple(tokenizer.token_of(each) for each in processor.edges or ())

    @property
    def safe(self) -> bool:
        """Can what a user writes never stand for an image?"""
        return {self._marker, self._token} <= set(self._tokenizer.special_texts)

    def close(self) -> None:
        self._images.close()

    # ------------------------------------------------------------ where they are

    def apart(self, messages: Sequence[Any]) -> tuple[list[Any], list[Source]]:
        """The messages with {"type": "image"} for each image, as templates read them, and the images in order. What is no
        message or part is left as it is, to be refused elsewhere."""
        sources: list[Source] = []
        out = []
        for i, message in enumerate(messages):
            content = message.get("content") if isinstance(message, Mapping) else None
            if not isinstance(content, list | tuple):
                out.append(message)
                continue
            parts = []
            for j, part in enumerate(content):
                at = f"messages[{i}].content[{j}]"
                source = _source(part, at)
                if source is not None and message.get("role") not in ("user", "tool"):
                    raise RequestError(f"{at}: only messages of role user and tool may hold images", at)
                sources += [] if source is None else [source]
                parts.append(part if source is None else {"type": "image"})
            out.append({**message, "content": parts})
        self._check_count(len(sources), "messages")
        return out, sources

    def _check_count(self, count: int, param: str) -> None:
        if count > self._limit:
            raise RequestError(
                f"{param}: {count} images; this server takes {self._limit} in one prompt (--limit-mm-per-prompt)", param
            )

    # ------------------------------------------------------------ what they are

    def read(self, sources: Sequence[Source]) -> list[Image]:
        """RequestError names the place of the first that cannot be read."""
        return list(self._threads.map(self._read, sources))

    async def read_async(self, sources: Sequence[Source]) -> list[Image]:
        """`read`, off the event loop."""
        loop = asyncio.get_running_loop()
        return list(await asyncio.gather(*(loop.run_in_executor(self._threads, self._read, s) for s in sources)))

    def _read(self, source: Source) -> Image:
        data = source.data or (self._gate.read(source.url, source.at) if source.url else b"")
        return self._images.read(data, source.at, source.name)

    # ------------------------------------------------------------ what stands for them

    def expand(self, images: Sequence[Image]) -> Expand:
        """What puts the placeholders of these images into a rendered prompt, and moves the spans of what callers wrote."""
        return partial(self._expand, images)

    def _expand(self, images: Sequence[Image], text: str, data: Sequence[Span]) -> tuple[str, list[Span]]:
        places = [at for at in _found(text, self._marker) if not _inside(at, at + len(self._marker), data)]
        if len(places) != len(images):
            raise RequestError(
                f"messages: the prompt shows {len(places)} of {len(images)} images"
                + ("" if places else ": the chat template takes none"), "messages",
            )  # fmt: skip
        out: list[str] = []
        moved: list[Span] = []
        last = grown = 0
        spans = list(data)
        for at, image in zip(places, images, strict=True):
            while spans and spans[0][1] <= at:
                a, b = spans.pop(0)
                moved.append((a + grown, b + grown))
            shown = self._processor.text(image.size, self._token).join(self._edges or ("", ""))
            out += [text[last:at], shown]
            last = at + len(self._marker)
            grown += len(shown) - len(self._marker)
        return "".join([*out, text[last:]]), [*moved, *((a + grown, b + grown) for a, b in spans)]

    def items(self, ids: Sequence[int], images: Sequence[Image], choices: int) -> tuple[MediaItem, ...]:
        """The images with the positions of their placeholders among a prompt's ids. choices: that the request asks for."""
        places = np.flatnonzero(np.array(ids, np.int32) == self._processor.token).astype(np.int32)
        counts = [self._processor.count(image.size) for image in images]
        if sum(counts) != places.size:
            raise RequestError(
                f"prompt: {places.size} placeholders for {sum(counts)} vectors of {len(images)} images", "prompt"
            )
        size = sum(v.nbytes for image in images for v in image.views)
        if size * choices > MOST_BYTES:
            raise RequestError(
                f"prompt: images of {size >> 20} MiB for {choices} choices are more than {MOST_BYTES >> 20} MiB: send fewer or "
                "smaller ones, or ask for fewer choices at once", "prompt",
            )  # fmt: skip
        parts = np.split(places, np.cumsum(counts)[:-1]) if counts else []
        return tuple(MediaItem(image.digest, at, image.views, image.size) for image, at in zip(images, parts, strict=True))

    def axes(self, length: int, items: Sequence[MediaItem]) -> Axes | None:
        """Positions of a prompt of so many tokens, of models that tell rows and columns apart."""
        return axes(self._processor, length, items)

    def forget(self) -> None:
        """Read every image anew."""
        self._images.forget()

    def uncut(self, items: Sequence[MediaItem]) -> tuple[tuple[int, int], ...]:
        """Tokens that are computed in one step, where images are to be."""
        return _spans(items) if self._uncut else ()

    def spans(self, items: Sequence[MediaItem]) -> tuple[tuple[int, int], ...]:
        """Tokens that see each other, of models whose images do."""
        return _spans(items) if self._processor.together else ()

    # ------------------------------------------------------------ prompts of programs

    def prompt(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """{"prompt": text, "multi_modal_data": {"image": one or several}} with the images read and their placeholders put in.
        An image is one of PIL's, u8[height, width, 3] of numpy, bytes of a file, or a URL. "multi_modal_uuids" beside it names
        images: None in place of one that is kept."""
        given = fields[NAME]
        rest = {k: v for k, v in fields.items() if k not in (NAME, UUIDS)}
        if not isinstance(given, Mapping) or given.keys() - {"image"}:
            raise RequestError(f'{NAME} must be {{"image": one or several}}; this version reads images', NAME)
        found = given.get("image", [])
        several = found if isinstance(found, list | tuple) else [found]
        self._check_count(len(several), NAME)
        names = _names(fields.get(UUIDS), len(several))
        images = self.read([_given(image, f"{NAME}.image[{i}]", names[i]) for i, image in enumerate(several)])
        text = rest.get("prompt")
        if rest.get("prompt_token_ids") is not None or not isinstance(text, str):
            raise RequestError(f"{NAME}: goes with a prompt of text, in which {self._marker} stands for an image", NAME)
        text, _ = self._expand(images, text, [])
        return {**rest, "prompt": text, "prompt_token_ids": self._tokenizer.encode(text), MEDIA: images}

    async def prompt_async(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """`prompt`, off the event loop."""
        return await asyncio.to_thread(self.prompt, fields)


def _spans(items: Sequence[MediaItem]) -> tuple[tuple[int, int], ...]:
    return tuple((int(item.positions[0]), int(item.positions[-1]) + 1) for item in items)


def axes(processor: Processor, length: int, items: Sequence[MediaItem]) -> Axes | None:
    """Positions of a prompt with these images. None: the model's have one axis. An image has the time of its first token, and
    what follows goes on behind its longer edge."""
    grids = [processor.grid(item.size) for item in items]
    shift, less = np.zeros((length, 3), np.int32), 0
    for item, grid in zip(items, grids, strict=True):
        if grid is None:
            return None
        first, last = int(item.positions[0]), int(item.positions[-1]) + 1
        each = np.arange(last - first, dtype=np.int32)
        down, across = np.divmod(each, grid[0])
        shift[first:last] = np.stack([np.zeros_like(down), down, across], 1) - each[:, None] - less
        less += last - first - max(grid)
        shift[last:] = -less
    return Axes(shift, -less)


def _found(text: str, marker: str) -> list[int]:
    out, at = [], text.find(marker)
    while at >= 0:
        out.append(at)
        at = text.find(marker, at + len(marker))
    return out


def _inside(begin: int, end: int, data: Sequence[Span]) -> bool:
    """Did the caller write some of it? An empty span is a place across which no token of ours reaches."""
    return any(begin < b and a < end for a, b in data)


def _source(part: Any, at: str) -> Source | None:
    """The image of a part of a message; None for other parts. RequestError for one that says it is an image and has none."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind not in PARTS:
        return None
    if kind in ("image_url", "input_image"):
        url = part.get("image_url")
        url = url.get("url") if isinstance(url, Mapping) else url
        if not isinstance(url, str):
            raise RequestError(f"{at}.image_url: must be a URL, such as data:image/png;base64,...", at)
        return Source(at, url=url)
    if isinstance(said := part.get("source"), Mapping):
        return _sourced(said, at)
    found = part.get(kind, part.get("url"))
    if found is None:
        raise RequestError(f"{at}: has no image", at)
    return _given(found, at)


def _sourced(said: Mapping[str, Any], at: str) -> Source:
    """As Anthropic's Messages API writes it."""
    if said.get("type") == "base64" and isinstance(said.get("data"), str):
        return Source(at, data=decoded(said["data"], at))
    if said.get("type") == "url" and isinstance(said.get("url"), str):
        return Source(at, url=said["url"])
    raise RequestError(f"{at}.source: must be of type base64, with data, or url, with a url", at)


def _names(said: Any, count: int) -> list[str]:
    """{"image": one name or several}, None for an image without: a name for each of so many, or ""."""
    if said is None:
        return [""] * count
    given = said.get("image") if isinstance(said, Mapping) and set(said) == {"image"} else None
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list | tuple) or len(names) != count or not all(isinstance(n, str | None) for n in names):
        raise RequestError(f'{UUIDS}: must be {{"image": a name, or None, for each of the {count} images}}', UUIDS)
    return [n or "" for n in names]


def _given(image: Any, at: str, name: str = "") -> Source:
    """An image as programs hold it."""
    if image is None and name:
        return Source(at, name=name)
    if isinstance(image, str):
        return Source(at, url=image, name=name)
    if isinstance(image, bytes | bytearray):
        return Source(at, data=checked(bytes(image), at), name=name)
    if isinstance(image, np.ndarray):
        return Source(at, data=checked(_bitmap(image, at), at), name=name)
    if hasattr(image, "save") and hasattr(image, "mode"):  # one of PIL's, which is not imported here
        file = io.BytesIO()
        image.save(file, format="PNG", compress_level=1)
        return Source(at, data=checked(file.getvalue(), at), name=name)
    raise RequestError(f"{at}: must be a URL, the bytes of a file, a PIL image or an array, not {type(image).__name__}", at)


def _bitmap(image: np.ndarray, at: str) -> bytes:
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
