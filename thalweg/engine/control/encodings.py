"""The schedule of encoders. Several items are encoded together: concurrently with steps where the device has a second queue,
else between steps, some layers of the encoder at a time.

Vectors are found by the digest of their item. A prompt waits for missing vectors; no other request does. Between steps that
decode, encoders get the time that prompts get (`pace`).
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from thalweg.engine.messages import Input
from thalweg.hal.device import Pending

logger = logging.getLogger(__name__)

WHOLE_SECONDS = 0.1
"""Target seconds of a launch where no tokens wait for it."""


class Encoding(Protocol):
    """Items encoded as a batch."""

    items: Sequence[Input]

    @property
    def layers_left(self) -> int:
        """Layers that have not been launched."""

    def launch(self, layers: int, /) -> Pending:
        """Launch the next layers, at most so many."""

    def vectors(self, last: Pending, /) -> list[np.ndarray]:
        """f32[positions, width] of each item. last: the result of the last launch."""


class Encoder(Protocol):
    """Computes the vectors of inputs."""

    beside: bool
    """Does it run concurrently with steps, and not between them?"""

    def takes(self, item: Input, /) -> bool:
        """Is there an encoder for it?"""

    def begin(self, waiting: Sequence[Input], /) -> Encoding:
        """An encoding of the first item, and of later ones that share its batch. The previous encoding has ended."""


class Encodings:
    def __init__(self, encoder: Encoder, clock: Callable[[], float], budget: int) -> None:
        """budget: bytes of vectors kept for later requests with the same items. The vectors of one item are kept at any size,
        as are those that a request waits for."""
        self._encoder, self._clock, self._budget = encoder, clock, budget
        self._kept: OrderedDict[bytes, np.ndarray] = OrderedDict()
        self._held = 0
        self._waiting: OrderedDict[bytes, Input] = OrderedDict()
        self._wanted: dict[bytes, np.ndarray] = {}
        """Vectors that requests have waited for, until `forget`."""
        self.failed: dict[bytes, str] = {}
        """Digest -> reason why an item could not be prepared for its encoder, until the requests that need it have ended."""
        self._encoding: Encoding | None = None
        self._flying: Pending | None = None
        self._launched, self._layers, self._rate = 0.0, 0, 0.0
        """Start and layers of the launch in flight, and seconds per layer at present."""

    @property
    def beside(self) -> bool:
        return self._encoder.beside

    @property
    def busy(self) -> bool:
        """Is anything to be encoded?"""
        return bool(self._waiting) or self._encoding is not None

    def find(self, item: Input) -> np.ndarray | None:
        """f32[positions, width]. None: not encoded yet, and queued."""
        found = self._kept.get(item.digest)
        if found is not None:
            self._kept.move_to_end(item.digest)
            return found
        found = self._wanted.get(item.digest)
        if found is None and not self._is_under_way(item.digest):
            self._waiting.setdefault(item.digest, item)
        return found

    def _is_under_way(self, digest: bytes) -> bool:
        return self._encoding is not None and any(item.digest == digest for item in self._encoding.items)

    def forget(self, needed: set[bytes]) -> None:
        """Drop queued items, and vectors beyond `budget`, that no request needs. needed: digests."""
        for digest in [d for d in self._waiting if d not in needed]:
            del self._waiting[digest]
        for digest in [d for d in self._wanted if d not in needed]:
            del self._wanted[digest]

    def advance(self, seconds: float | None, wait: bool) -> float:
        """Read a finished launch, and launch more. Returns the seconds of the finished launch.

        seconds: target for the next launch. 0: no launch now. None: no tokens wait for it. wait: there is no other work, so
        wait for the launch in flight."""
        took = self._read(wait)
        if self._flying is not None or (seconds == 0 and not self.beside):
            return took
        if self._encoding is None:
            if not self._waiting:
                return took
            self._encoding = self._begin()
            if self._encoding is None:
                return took
            self._rate = 0.0
        may = WHOLE_SECONDS if seconds is None else seconds
        self._layers = max(1, int(may / self._rate)) if self._rate else 1
        self._layers = min(self._layers, self._encoding.layers_left)
        self._launched = self._clock()
        self._flying = self._encoding.launch(self._layers)
        return took + self._read(False)

    def _begin(self) -> Encoding | None:
        """An encoding of the first items that wait. A fault of one item must not fail those encoded together with it, so that
        the first is tried again without them. None: it has failed."""
        waiting = list(self._waiting.values())
        for items in (waiting, waiting[:1]):
            try:
                encoding = self._encoder.begin(items)
            except Exception as e:  # packages build these batches
                why = f"{items[0].kind}: the item cannot be prepared for its encoder: {type(e).__name__}: {e}"
                logger.error("%s", why, exc_info=e)
                continue
            for item in encoding.items:
                del self._waiting[item.digest]
            return encoding
        self.failed[waiting[0].digest] = why
        del self._waiting[waiting[0].digest]
        return None

    def _read(self, wait: bool) -> float:
        """Read the launch in flight, if it is done. Returns its seconds."""
        flying, encoding = self._flying, self._encoding
        if flying is None or encoding is None or not (wait or flying.ready()):
            return 0.0
        if encoding.layers_left:
            flying.result()
        else:
            for item, vectors in zip(encoding.items, encoding.vectors(flying), strict=True):
                self._keep(item.digest, vectors)
            self._encoding = None
        self._flying = None
        took = self._clock() - self._launched
        self._rate = took / max(1, self._layers)
        return took

    def _keep(self, digest: bytes, vectors: np.ndarray) -> None:
        self._wanted[digest] = self._kept[digest] = vectors
        self._held += vectors.nbytes
        while self._held > self._budget and len(self._kept) > 1:
            self._held -= self._kept.popitem(last=False)[1].nbytes
