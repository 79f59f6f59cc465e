"""Vectors of images and sounds: the executables of encoders, and what they gave for what was last seen or heard."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from thalweg.engine.messages import MediaItem
from thalweg.hal.device import Device, Executable
from thalweg.hal.step import Params, StateBox, StepBatch
from thalweg.media import patches
from thalweg.media.listeners import Listener
from thalweg.media.processors import Processor
from thalweg.models.vision.ear import Ear
from thalweg.models.vision.tower import Tower


@dataclass
class Way:
    """An encoder. batches: of an item, its step, and how its layers see that, one for each kind of layer."""

    tower: Tower | Ear
    params: Params
    batches: Callable[[MediaItem], tuple[StepBatch, ...]]
    run: Executable | None = field(default=None, init=False)


def seeing(tower: Tower, params: Params, processor: Processor) -> Way:
    def batches(item: MediaItem) -> tuple[StepBatch, ...]:
        whole = patches.batch(processor.prepared(item.views, item.size))
        merged = () if tower.spec.shrinks is None else (patches.shrunk(whole, tower.spec.shrinks[1].group),)
        return (whole, patches.windows(whole), *merged)

    return Way(tower, params, batches)


def hearing(tower: Ear, params: Params, listener: Listener) -> Way:
    return Way(tower, params, lambda item: (listener.batch(item.views[0], item.frames),))


class Encoder:
    """One thread drives it. Vectors of an item are kept by its digest, the least recently used are forgotten."""

    def __init__(self, device: Device, eye: Way | None, ear: Way | None, budget: int) -> None:
        """budget: bytes of vectors that are kept. Those of one item are, whatever they take."""
        self._device, self._eye, self._ear, self._budget = device, eye, ear, budget
        self._kept: OrderedDict[bytes, np.ndarray] = OrderedDict()
        self._held = 0
        self.runs = 0
        """Items encoded."""

    def takes(self, item: MediaItem) -> bool:
        """Is there an encoder for it?"""
        return (self._ear if item.frames else self._eye) is not None

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
        way = self._ear if item.frames else self._eye
        assert way is not None, "refused before"
        seen = way.batches(item)
        batch, (backend, spec) = seen[0], way.tower.attention
        batch.metadata = tuple(backend.metadata(b, 0, spec, None) for b in seen)
        if way.run is None:
            way.run = self._device.compile(way.tower.step, way.params, StateBox({}), None, None)
        vectors = way.run(batch).result().pooled
        if vectors is None or len(vectors) != item.positions.size:
            raise RuntimeError(f"{item.positions.size} placeholders for {0 if vectors is None else len(vectors)} vectors")
        return np.array(vectors, np.float32)
