"""Images read where they can do no harm: in child processes with limits (`decoders`), killed when they pass one."""

from __future__ import annotations

import msgspec
import numpy as np

from thalweg.errors import RequestError
from thalweg.host.jobs import TaskLimits
from thalweg.media.cache import MediaCache
from thalweg.media.decoders.base import MediaDecoder
from thalweg.media.decoders.image import PROCESS, WHITE, WORDS, Colour, ImageTask, Picture, Views
from thalweg.media.digests import Digests
from thalweg.media.processors import Processor, Size

SECONDS = 5.0
"""Processor time for one image."""
WALL = 60.0
"""Seconds of the clock. A task waits for nothing, so only a stalled machine reaches this."""
MEMORY = 1 << 30
"""Bytes over an idle process: a few copies of the largest image."""


class Image(msgspec.Struct, frozen=True):
    """A processed image: views u8[height, width, 3], its width and height before that, and a unique digest.
    The digest covers the processor, the size, each view's shape and its bytes."""

    views: tuple[np.ndarray, ...]
    size: Size
    digest: bytes

    @property
    def nbytes(self) -> int:
        return sum(view.nbytes for view in self.views)


class ImageLoader:
    """Up to `readers` children that read images. Thread-safe. Children start when first needed, or with `prepare`. They end
    with this object or this process."""

    def __init__(self, processor: Processor, kept_bytes: int = 0, background: Colour = WHITE, readers: int = 2) -> None:
        """kept_bytes: size of the cache of processed images. background: replaces transparency."""
        self._processor, self._background = processor, background
        self._kept: MediaCache[Image] = MediaCache(kept_bytes)
        self._digests = Digests("image", processor)
        self._decoder: MediaDecoder[ImageTask, Views] = MediaDecoder(PROCESS, readers, Views, WORDS)

    def prepare(self) -> None:
        """Have a child ready soon. Does not wait."""
        self._decoder.prepare()

    def close(self) -> None:
        """End the idle children. A later `read` starts new ones."""
        self._decoder.close()

    def forget(self) -> None:
        """Clear the cache: images are decoded again from now on."""
        self._kept.clear()

    def read(self, data: bytes, at: str, name: str = "", background: Colour | None = None) -> Image:
        """at: the place in the request. name: the client's name for the image. An image cached under the name is returned
        whatever the data, which may be empty then. background: replaces transparency. None: the loader's colour. RequestError
        names the fault of the image. UnavailableError: children were lost or stalled, and the image is not to blame."""
        background = self._background if background is None else background
        key = b"name" + name.encode() if name else self._digests.of_bytes(data)
        if background != self._background:
            key += repr(background).encode()
        found = self._kept.get(key)
        if found is None and not data and not name:
            raise RequestError(f"{at}: is empty; send the bytes of a file, as a data: URL", at)
        if found is None and not data:
            raise RequestError(f"{at}: no image of the name {name[:60]!r} is kept; send it", at)
        if found is None:
            found = self._read(data, at, background)
            self._kept.put(key, found)
        return found

    def _read(self, data: bytes, at: str, background: Colour) -> Image:
        task = ImageTask(data=data, processor=self._processor, background=background)
        result = self._decoder.decode(task, at, TaskLimits(SECONDS, WALL, MEMORY), extra=2 * len(data))
        views = tuple(to_array(picture) for picture in result.views)
        return Image(views, result.size, self._digests.of_arrays(result.size, *views))


def to_array(picture: Picture) -> np.ndarray:
    """u8[height, width, 3]."""
    return np.frombuffer(picture.data, np.uint8).reshape(picture.height, picture.width, 3)
