"""Vectors of images: the encoder's executable, and what it gave for the images last seen."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import numpy as np

from thalweg.engine.messages import MediaItem
from thalweg.hal.device import Device, Executable
from thalweg.hal.step import Params, StateBox
from thalweg.media import patches
from thalweg.media.processors import Processor
from thalweg.models.vision.tower import Tower


class Encoder:
    """One thread drives it. Vectors of an image are kept by its digest, the least recently used are forgotten."""

    def __init__(self, tower: Tower, params: Params, device: Device, processor: Processor, budget: int) -> None:
        """budget: bytes of vectors that are kept. Those of one image are, whatever they take."""
        self._attention, self._processor, self._budget = tower.attention, processor, budget
        self._make: Callable[[], Executable] = lambda: device.compile(tower.step, params, StateBox({}), None, None)
        self._run: Executable | None = None
        self._kept: OrderedDict[bytes, np.ndarray] = OrderedDict()
        self._held = 0
        self.runs = 0
        """Images encoded."""

    def __call__(self, item: MediaItem) -> np.ndarray:
        """f32[positions, width * hidden]."""
        found = self._kept.get(item.digest)
        if found is not None:
            self._kept.move_to_end(item.digest)
            return found
        made = self._encode(item)
        self._kept[item.digest] = made
        self._held += made.nbytes
        while self._held > self._budget and len(self._kept) > 1:
            self._held -= self._kept.popitem(last=False)[1].nbytes
        return made

    def _encode(self, item: MediaItem) -> np.ndarray:
        self.runs += 1
        batch = patches.batch(self._processor.prepared(item.views, item.size))
        backend, spec = self._attention
        batch.metadata = tuple(backend.metadata(b, 0, spec, None) for b in (batch, patches.windows(batch)))
        if self._run is None:
            self._run = self._make()
        vectors = self._run(batch).result().pooled
        if vectors is None or len(vectors) != item.positions.size:
            raise RuntimeError(f"{item.positions.size} placeholders for {0 if vectors is None else len(vectors)} vectors")
        return np.array(vectors, np.float32)
