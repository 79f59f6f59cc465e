"""The executables of encoders: several images are encoded together, and some layers at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from thalweg.engine.messages import Input
from thalweg.hal.device import Background, Device, Executable, Pending
from thalweg.hal.step import Params, StateBox, Step, StepBatch
from thalweg.media import patches
from thalweg.media.listeners import Listener
from thalweg.media.processors import Processor
from thalweg.models.vision.ear import Ear
from thalweg.models.vision.tower import Tower

Compile = Callable[[Step, Params, StateBox], Executable]
TOGETHER = 1 << 14
"""Patches of images that are encoded together. One image may have more."""


@dataclass
class Way:
    """An encoder. batches: of items, their step, and how its layers see that, one for each kind of layer."""

    tower: Tower | Ear
    params: Params
    batches: Callable[[Sequence[Input]], tuple[StepBatch, ...]]
    size: Callable[[Input], int]
    """Patches of an item. Those of items that are encoded together are at most `TOGETHER`."""
    state: StateBox = field(default_factory=lambda: StateBox({}), init=False)
    carried: dict[str, Any] = field(default_factory=dict, init=False)
    """What the last part launched left for the next."""
    made: dict[tuple[int, int], Executable] = field(default_factory=dict, init=False)
    """By the layers that they run."""


def seeing(tower: Tower, params: Params, processor: Processor) -> Way:
    def batches(items: Sequence[Input]) -> tuple[StepBatch, ...]:
        each = [processor.prepared(item.data, (item.size[0], item.size[1])) for item in items]
        shrinks = 1 if tower.spec.shrinks is None else tower.spec.shrinks[1].group
        whole = patches.batch(patches.together(each, tower.spec.projector.group, shrinks))
        merged = () if tower.spec.shrinks is None else (patches.shrunk(whole, shrinks),)
        return (whole, patches.windows(whole), *merged)

    def size(item: Input) -> int:
        return sum(v.shape[0] // processor.patch * (v.shape[1] // processor.patch) for v in item.data)

    return Way(tower, params, batches, size)


def hearing(tower: Ear, params: Params, listener: Listener) -> Way:
    """Sounds are encoded one at a time."""
    return Way(tower, params, lambda items: (listener.batch(items[0].data[0], items[0].size[0]),), lambda item: TOGETHER)


class Encoding:
    """One run of an encoder. Its parts are launched in order, and the last one's result has the vectors."""

    def __init__(self, way: Way, items: Sequence[Input], compile: Compile, whole: bool) -> None:
        """whole: all layers are launched at once."""
        self.items, self._way, self._compile, self._whole, self._next = items, way, compile, whole, 0
        seen = way.batches(items)
        self._batch, (backend, spec) = seen[0], way.tower.attention
        self._batch.metadata = tuple(backend.metadata(b, 0, spec, None) for b in seen)

    @property
    def left(self) -> int:
        """Layers that have not been launched."""
        return self._way.tower.depth - self._next

    def launch(self, layers: int) -> Pending:
        """The next layers, at most so many, or all of them."""
        way, first, last = self._way, self._next, self._next + (self.left if self._whole else min(layers, self.left))
        if (first, last) not in way.made:
            way.made[first, last] = self._compile(way.tower.part(first, last, way.carried), way.params, way.state)
        self._next = last
        return way.made[first, last](self._batch)

    def vectors(self, last: Pending) -> list[np.ndarray]:
        """f32[positions, width * hidden] of each item. last: what the last launch gave."""
        found, sizes = last.result().pooled, [item.positions.size for item in self.items]
        if found is None or len(found) != sum(sizes):
            raise RuntimeError(f"{sum(sizes)} placeholders for {0 if found is None else len(found)} vectors")
        return [np.array(part, np.float32) for part in np.split(np.asarray(found), np.cumsum(sizes)[:-1])]


class Encoder:
    """Begins encodings. One thread drives it, and at most one encoding is under way."""

    def __init__(self, device: Device, background: Background | None, ways: Mapping[str, Way]) -> None:
        """background: where it runs. None: in the queue of the steps, between them. ways: by kind of input."""
        self._device, self._ways = device, ways
        self.beside = background is not None
        self._compile = background.compile if background else lambda step, p, state: device.compile(step, p, state, None, None)
        self.items = 0
        """Items encoded, or begun."""

    def takes(self, item: Input) -> bool:
        """Is there an encoder for it?"""
        return item.kind in self._ways

    def begin(self, waiting: Sequence[Input]) -> Encoding:
        """Of the first of these, and of those after it that are encoded together with it."""
        way = self._ways[waiting[0].kind]
        items, size = [waiting[0]], way.size(waiting[0])
        for item in waiting[1:]:
            if self._device.pads or item.kind != waiting[0].kind:
                break
            size += way.size(item)
            if size > TOGETHER:
                break
            items.append(item)
        self.items += len(items)
        return Encoding(way, items, self._compile, self.beside or self._device.pads)
