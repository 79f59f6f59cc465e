"""Images and sounds of requests: found in messages, read behind the gate, and given their places among a prompt's tokens."""

from __future__ import annotations

import asyncio
import io
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from thalweg.engine.messages import Input
from thalweg.errors import RequestError
from thalweg.host.turns import Turns
from thalweg.media.fetches import Fetches
from thalweg.media.gate import Gate, checked, decoded
from thalweg.media.images import CELLS, Image, Images
from thalweg.media.listeners import Listener
from thalweg.media.processors import Processor, Size
from thalweg.media.sound import samples_of
from thalweg.media.sounds import Sound, Sounds
from thalweg.media.wire import WHITE, Colour
from thalweg.template.specials import Span
from thalweg.text.tokenizer import Tokenizer

NAME, UUIDS = "multi_modal_data", "multi_modal_uuids"
MEDIA = "media"
"""Key of a prompt under which images and sounds lie that have been read."""
MOST_IMAGES = 16
"""Of one prompt, unless --limit-mm-per-prompt says otherwise."""
MOST_SOUNDS = 16
"""The same of sounds."""
SEES = "sounds are not supported by this model: it does not hear"
MOST_BYTES = 160 << 20
"""Bytes of pixels and spectra that a request may send to an engine process, all its choices together."""
PARTS = ("image_url", "input_image", "image", "image_pil")
"""Types of parts of messages that hold an image."""
HEARD = ("input_audio", "audio_url", "audio")
"""Those that hold a sound."""
Kind = Literal["image", "audio"]
Medium = Image | Sound


@dataclass(frozen=True, slots=True)
class Source:
    """An image or a sound that was not read yet. at: its place in the request."""

    at: str
    url: str = ""
    data: bytes = b""
    name: str = ""
    """What the caller calls it. There may be nothing else of one that is kept."""
    kind: Kind = "image"
    samples: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class _Way:
    """How a model takes one kind of media."""

    word: str
    token: int
    shown: str
    """Its text."""
    marker: str
    """What templates write for an item."""
    limit: int
    """Items of one prompt."""
    count: Callable[[Any], int]
    """Placeholders of an item."""
    text: Callable[[Any], str]
    """What stands for it in the prompt."""
    read: Callable[[Source, bytes], Medium]
    """Of the source, and the bytes that were fetched for it."""
    number: str = ""
    """What stands before that, with the item's number in place of {}."""


@dataclass(frozen=True, slots=True)
class Expand:
    """signs: what stands for each kind before it does its work."""

    signs: Mapping[str, str]
    work: Callable[[str, Sequence[Span]], tuple[str, list[Span]]]

    def __call__(self, text: str, data: Sequence[Span], /) -> tuple[str, list[Span]]:
        return self.work(text, data)


@dataclass(frozen=True, slots=True)
class Settings:
    """images, sounds: of one prompt. kept_bytes, background: see Images. uncut: an image is computed in one step."""

    images: int = MOST_IMAGES
    sounds: int = MOST_SOUNDS
    kept_bytes: int = 0
    background: Colour = WHITE
    uncut: bool = False


class Media:
    """What a model that sees or hears needs of a client. Thread-safe."""

    def __init__(
        self, processor: Processor | None, listener: Listener | None, tokenizer: Tokenizer, gate: Gate,
        settings: Settings = Settings(),
    ) -> None:  # fmt: skip
        """processor, listener: None where the model does not see or hear."""
        self._processor, self._tokenizer, self._gate, self._settings = processor, tokenizer, gate, settings
        self._threads, self._turns, self._fetches = ThreadPoolExecutor(CELLS, "media"), Turns(CELLS), Fetches(gate)
        self._images = None if processor is None else Images(processor, settings.kept_bytes, settings.background)
        self._sounds = None if listener is None else Sounds(listener, CELLS)
        self._ways: dict[Kind, _Way] = {}
        if processor is not None:
            shown = tokenizer.token_of(processor.token)
            edges = tuple(tokenizer.token_of(each) for each in processor.edges or ()) or ("", "")
            self._ways["image"] = _Way(
                "images", processor.token, shown, processor.marker or shown, settings.images,
                lambda image: processor.count(image.size), lambda image: processor.text(image.size, shown).join(edges),
                self._look, processor.number,
            )  # fmt: skip
        if listener is not None:
            said = tokenizer.token_of(listener.token)
            ends = tuple(tokenizer.token_of(each) for each in listener.edges or ()) or ("", "")
            self._ways["audio"] = _Way(
                "sounds", listener.token, said, listener.marker or said, settings.sounds,
                lambda sound: listener.count(sound.frames), lambda sound: (said * listener.count(sound.frames)).join(ends),
                self._hear,
            )  # fmt: skip

    @property
    def unsafe(self) -> list[str]:
        """Kinds for which what a user writes could stand for an item."""
        return [w.word for w in self._ways.values() if not {w.marker, w.shown} <= set(self._tokenizer.special_texts)]

    def close(self) -> None:
        for readers in (self._images, self._sounds):
            if readers is not None:
                readers.close()

    # ------------------------------------------------------------ where they are

    def apart(self, messages: Sequence[Any]) -> tuple[list[Any], list[Source]]:
        """The messages with {"type": "image"} for each image and {"type": "audio"} for each sound, as templates read them, and
        these in order. What is no message or part is left as it is, to be refused elsewhere."""
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
                if source is not None and source.kind not in self._ways:
                    raise self._refused(at, source.kind)
                if source is not None and message.get("role") not in ("user", "tool"):
                    raise RequestError(f"{at}: only messages of role user and tool may hold images and sounds", at)
                sources += [] if source is None else [source]
                parts.append(part if source is None else {"type": source.kind})
            out.append({**message, "content": parts})
        self._check_count(sources, "messages")
        return out, sources

    def _refused(self, at: str, kind: Kind) -> RequestError:
        words = "images are not supported by this model: it hears" if kind == "image" else SEES
        return RequestError(f"{at}: {words}; leave it out", at)

    def _check_count(self, sources: Sequence[Source], param: str) -> None:
        for kind, way in self._ways.items():
            count = sum(source.kind == kind for source in sources)
            if count > way.limit:
                raise RequestError(
                    f"{param}: {count} {way.word}; this server takes {way.limit} in one prompt (--limit-mm-per-prompt)", param
                )

    # ------------------------------------------------------------ what they are

    def read(self, sources: Sequence[Source]) -> list[Medium]:
        """RequestError names the place of the first that cannot be read."""
        data = self._fetches.read_all([(source.url, source.at) for source in sources])
        return list(self._threads.map(self._read, sources, data))

    async def read_async(self, sources: Sequence[Source], tenant: str = "") -> list[Medium]:
        """`read`, off the event loop. tenant: whose turns it takes, where hosts or the decoding processes are busy."""
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._obtain(source, tenant)) for source in sources]
        except ExceptionGroup as e:
            raise e.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _obtain(self, source: Source, tenant: str) -> Medium:
        async with self._fetches.fetch(source.url, source.at, tenant) as data:
            return await self._turns.run(tenant, self._threads, partial(self._read, source, data))

    def _read(self, source: Source, fetched: bytes = b"") -> Medium:
        return self._ways[source.kind].read(source, fetched)

    def _look(self, source: Source, fetched: bytes) -> Image:
        assert self._images is not None
        return self._images.read(self._data(source, fetched), source.at, source.name)

    def _hear(self, source: Source, fetched: bytes) -> Sound:
        assert self._sounds is not None
        if source.samples is not None:
            return self._sounds.of(source.samples, source.at)
        return self._sounds.read(self._data(source, fetched), source.at)

    def _data(self, source: Source, fetched: bytes) -> bytes:
        return source.data or fetched or (self._gate.read(source.url, source.at) if source.url else b"")

    # ------------------------------------------------------------ what stands for them

    def expand(self, media: Sequence[Medium]) -> Expand:
        """What puts their placeholders into a rendered prompt, and moves the spans of what callers wrote."""
        return Expand({kind: way.marker for kind, way in self._ways.items()}, partial(self._expand, media))

    def _expand(self, media: Sequence[Medium], text: str, data: Sequence[Span]) -> tuple[str, list[Span]]:
        places: list[tuple[int, str, str]] = []
        for kind, way in self._ways.items():
            mine = _of(kind, media)
            found = [at for at in _found(text, way.marker) if not _inside(at, at + len(way.marker), data)]
            if len(found) != len(mine):
                raise RequestError(
                    f"messages: the prompt shows {len(found)} of {len(mine)} {way.word}"
                    + ("" if found else ": the chat template takes none"), "messages",
                )  # fmt: skip
            places += [
                (at, way.marker, way.number.format(i) + way.text(item))
                for i, (at, item) in enumerate(zip(found, mine, strict=True))
            ]
        out: list[str] = []
        moved: list[Span] = []
        last = grown = 0
        spans = list(data)
        for at, marker, shown in sorted(places):
            while spans and spans[0][1] <= at:
                a, b = spans.pop(0)
                moved.append((a + grown, b + grown))
            out += [text[last:at], shown]
            last = at + len(marker)
            grown += len(shown) - len(marker)
        return "".join([*out, text[last:]]), [*moved, *((a + grown, b + grown) for a, b in spans)]

    def inputs(self, ids: Sequence[int], media: Sequence[Medium], choices: int) -> tuple[Input, ...]:
        """The media with the positions of their placeholders among a prompt's ids. choices: that the request asks for."""
        made: list[Input] = []
        for kind, way in self._ways.items():
            mine = _of(kind, media)
            places = np.flatnonzero(np.array(ids, np.int32) == way.token).astype(np.int32)
            counts = [way.count(item) for item in mine]
            if sum(counts) != places.size:
                raise RequestError(
                    f"prompt: {places.size} placeholders for {sum(counts)} vectors of {len(mine)} {way.word}", "prompt"
                )
            parts = np.split(places, np.cumsum(counts)[:-1]) if counts else []
            made += [self._input(each, at) for each, at in zip(mine, parts, strict=True)]
        size = sum(v.nbytes for item in made for v in item.data)
        if size * choices > MOST_BYTES:
            raise RequestError(
                f"prompt: images and sounds of {size >> 20} MiB for {choices} choices are more than {MOST_BYTES >> 20} MiB: "
                "send fewer or smaller ones, or ask for fewer choices at once", "prompt",
            )  # fmt: skip
        return tuple(sorted(made, key=lambda item: int(item.positions[0])))

    def _input(self, item: Medium, positions: np.ndarray) -> Input:
        uncut = self._settings.uncut
        if isinstance(item, Sound):
            return Input(
                kind="audio", digest=item.digest, positions=positions, data=(item.mel,), size=(item.frames,), uncut=uncut
            )
        assert self._processor is not None
        axes, extent = axes_of(self._processor, item.size, positions)
        return Input(
            kind="image", digest=item.digest, positions=positions, data=item.views, size=item.size, uncut=uncut,
            bidirectional=self._processor.together, axes=axes, extent=extent,
        )  # fmt: skip

    def forget(self) -> None:
        """Read every image anew."""
        if self._images is not None:
            self._images.forget()

    # ------------------------------------------------------------ prompts of programs

    def prompt(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """{"prompt": text, "multi_modal_data": {"image": one or several, "audio": one or several}} with these read and their
        placeholders put in. An image is one of PIL's, u8[height, width, 3] of numpy, bytes of a file, or a URL. A sound is
        samples, (samples, rate), bytes of a file, or a URL. "multi_modal_uuids" beside it names images: None in place of one
        that is kept."""
        given = fields[NAME]
        rest = {k: v for k, v in fields.items() if k not in (NAME, UUIDS)}
        if not isinstance(given, Mapping) or given.keys() - self._ways.keys():
            words = " and ".join(f'"{kind}": one or several' for kind in self._ways)
            kinds = " and ".join(way.word for way in self._ways.values())
            raise RequestError(f"{NAME} must be {{{words}}}; with this model this version reads {kinds}", NAME)
        sources: list[Source] = []
        for kind in self._ways:
            found = given.get(kind, [])
            several = found if isinstance(found, list | tuple) and not _is_sound(found) else [found]
            if kind == "image":
                names = _names(fields.get(UUIDS), len(several))
                sources += [
                    _given(item, f"{NAME}.image[{i}]", name) for i, (item, name) in enumerate(zip(several, names, strict=True))
                ]
            else:
                sources += [_given_sound(item, f"{NAME}.{kind}[{i}]") for i, item in enumerate(several)]
        self._check_count(sources, NAME)
        text = rest.get("prompt")
        if rest.get("prompt_token_ids") is not None or not isinstance(text, str):
            marks = " and ".join(f"{way.marker} stands for {way.word}" for way in self._ways.values())
            raise RequestError(f"{NAME}: goes with a prompt of text, in which {marks}", NAME)
        media = self.read(sources)
        text, _ = self._expand(media, text, [])
        return {**rest, "prompt": text, "prompt_token_ids": self._tokenizer.encode(text), MEDIA: media}

    async def prompt_async(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """`prompt`, off the event loop."""
        return await asyncio.to_thread(self.prompt, fields)


def axes_of(processor: Processor, size: Size, positions: np.ndarray) -> tuple[np.ndarray | None, int]:
    """`Input.axes` and `Input.extent` of an image of this size. It has the time of its first token, and what follows goes on
    behind its longer edge."""
    grid = processor.grid(size)
    if grid is None:
        return None, 0
    down, across = np.divmod(np.arange(int(positions[-1]) + 1 - int(positions[0]), dtype=np.int32), grid[0])
    return np.stack([np.zeros_like(down), down, across], 1), max(grid)


def _of(kind: Kind, media: Sequence[Medium]) -> list[Medium]:
    return [item for item in media if isinstance(item, Image if kind == "image" else Sound)]


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
    """The image or sound of a part of a message; None for other parts. RequestError for one that has not what it says."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind in HEARD:
        return _sound_source(part, kind, at)
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


def _sound_source(part: Mapping[str, Any], kind: str, at: str) -> Source:
    """{"type": "input_audio", "input_audio": {"data": base64, "format": "wav"}}, {"type": "audio_url", "audio_url": {"url":
    ...}}, or {"type": "audio", "audio": what `_given_sound` takes}. What a request says of its format is not believed."""
    found = part.get(kind)
    if kind == "input_audio":
        if not isinstance(found, Mapping) or not isinstance(found.get("data"), str):
            raise RequestError(f"{at}.input_audio: must have data, the file in base64, and its format", at)
        return Source(at, data=decoded(found["data"], at), kind="audio")
    if kind == "audio_url":
        url = found.get("url") if isinstance(found, Mapping) else found
        if not isinstance(url, str):
            raise RequestError(f"{at}.audio_url: must be a URL, such as data:audio/wav;base64,...", at)
        return Source(at, url=url, kind="audio")
    found = next((part[key] for key in ("audio", "audio_url", "url") if part.get(key) is not None), None)
    if found is None:
        raise RequestError(f"{at}: has no sound", at)
    return _given_sound(found, at)


def _is_sound(given: Any) -> bool:
    """Is this list one sound, and not several?"""
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], int | float | np.integer):
        return True
    return bool(len(given)) and isinstance(given[0], int | float)


def _given_sound(sound: Any, at: str) -> Source:
    """A sound as programs hold it."""
    if isinstance(sound, str):
        return Source(at, url=sound, kind="audio")
    if isinstance(sound, bytes | bytearray):
        return Source(at, data=checked(bytes(sound), at), kind="audio")
    return Source(at, kind="audio", samples=samples_of(sound, at))


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
