"""Images read where they can do no harm: in child processes with limits (`cell`), killed when they pass one."""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections import OrderedDict

import msgspec
import numpy as np

from thalweg.errors import RequestError, UnavailableError
from thalweg.host.cells import Cells, CrashedError, LostError, OverranError, StoodStillError
from thalweg.media.processors import Processor, Size
from thalweg.media.wire import WHITE, Colour, Done, Job, Picture, Refused, frame

MOST_PIXELS = 1 << 26
"""Pixels that an image may announce. They are decoded whole before anything is made smaller."""
SECONDS = 5.0
"""Processor time for one image."""
WALL = 60.0
"""Seconds of the clock. An image cannot wait: it stands still with its machine alone."""
MEMORY = 1 << 30
"""Bytes over an idle process: a few copies of the largest image."""
DIGEST = 16
"""Bytes of a digest."""


class Image(msgspec.Struct, frozen=True):
    """What was made of one: views u8[height, width, 3], its width and height before that, and a digest that no other image has.
    The digest is keyed with a secret of this process, and covers the processor, the size, each view's shape and its bytes."""

    views: tuple[np.ndarray, ...]
    size: Size
    digest: bytes

    @property
    def nbytes(self) -> int:
        return sum(view.nbytes for view in self.views)


class _Kept:
    """Images by key, at most so many bytes of them: who was asked for longest ago goes first. Thread-safe."""

    def __init__(self, most: int) -> None:
        self._most, self._bytes = most, 0
        self._images: OrderedDict[bytes, Image] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: bytes) -> Image | None:
        with self._lock:
            if key in self._images:
                self._images.move_to_end(key)
            return self._images.get(key)

    def put(self, key: bytes, image: Image) -> None:
        if image.nbytes > self._most:
            return
        with self._lock:
            if key not in self._images:
                self._images[key] = image
                self._bytes += image.nbytes
            while self._bytes > self._most:
                self._bytes -= self._images.popitem(last=False)[1].nbytes

    def clear(self) -> None:
        with self._lock:
            self._images.clear()
            self._bytes = 0


class Images:
    """Up to `readers` children that read images. Thread-safe. Children start when first needed, or with `prepare`. They end
    with this object or this process."""

    def __init__(self, processor: Processor, kept_bytes: int = 0, background: Colour = WHITE, readers: int = 2) -> None:
        """kept_bytes: of images that were read, for when they come again. background: shows through what is transparent."""
        self._processor, self._background = processor, background
        self._kept = _Kept(kept_bytes)
        self._settings = msgspec.msgpack.encode(processor)
        self._secret = secrets.token_bytes(32)
        self._decoder: msgspec.msgpack.Decoder[Done | Refused] = msgspec.msgpack.Decoder(Done | Refused)
        self._cells = Cells("thalweg.media.cell", readers, lambda reply: self._decoder.decode(reply).last)

    def prepare(self) -> None:
        """Have a child ready soon. Does not wait."""
        self._cells.prepare()

    def close(self) -> None:
        """End the idle children. A later `read` starts new ones."""
        self._cells.close()

    def forget(self) -> None:
        """Read everything anew from now on."""
        self._kept.clear()

    def read(self, data: bytes, at: str, name: str = "") -> Image:
        """at: the place in the request. name: what the caller calls an image. One that is kept under it is taken, whatever
        the data, which may be empty then. RequestError says what is wrong with it. UnavailableError: children were lost or
        stood still for no reason of ours."""
        key = b"name" + name.encode() if name else hashlib.blake2b(data, key=self._secret, digest_size=DIGEST).digest()
        found = self._kept.get(key)
        if found is None and not data:
            raise RequestError(f"{at}: no image of the name {name[:60]!r} is kept; send it", at)
        if found is None:
            found = self._read(data, at)
            self._kept.put(key, found)
        return found

    def _read(self, data: bytes, at: str) -> Image:
        job = Job(
            data=data, processor=self._processor, most_pixels=MOST_PIXELS, seconds=SECONDS, wall=WALL,
            memory=MEMORY + 2 * len(data), background=self._background,
        )  # fmt: skip
        try:
            reply = self._decoder.decode(self._cells.ask(frame(job), WALL + SECONDS))
        except OverranError:
            raise RequestError(f"{at}: took longer than {SECONDS:g} seconds to read", at) from None
        except CrashedError:
            raise RequestError(f"{at}: crashed the process that read it", at) from None
        except (StoodStillError, LostError):
            raise UnavailableError("the process that reads images was lost or stood still; try again") from None
        if isinstance(reply, Refused):
            raise _refusal(reply, at)
        views = tuple(_array(picture) for picture in reply.views)
        return Image(views, reply.size, self._digest(views, reply.size))

    def _digest(self, views: tuple[np.ndarray, ...], size: Size) -> bytes:
        """Of everything that what the model sees depends on, each part behind its length."""
        found = hashlib.blake2b(key=self._secret, digest_size=DIGEST)
        head = (b"image", self._settings, repr(size).encode())
        for part in (*head, *(p for v in views for p in (repr((v.shape, v.dtype.str)).encode(), v.data))):
            found.update(b"%d:" % len(memoryview(part).cast("B")))
            found.update(part)
        return found.digest()


def _array(picture: Picture) -> np.ndarray:
    return np.frombuffer(picture.data, np.uint8).reshape(picture.height, picture.width, 3)


def _refusal(reply: Refused, at: str) -> Exception:
    if reply.why == "library":
        return UnavailableError("images need the library Pillow on the server: pip install 'thalweg[images]'")
    words = {
        "format": "is no image that is read here: send PNG, JPEG, WebP or GIF",
        "broken": "is a damaged or incomplete image",
        "pixels": f"has {reply.detail} pixels; the limit is {MOST_PIXELS >> 20} Mi pixels: send a smaller image",
        "shape": reply.detail,
        "memory": f"needs more than {MEMORY >> 20} MiB of memory to read; send a smaller image",
    }
    return RequestError(f"{at}: {words[reply.why]}", at)
