"""The executables of encoders: several inputs are encoded together, and some layers at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from thalweg.engine.messages import Input
from thalweg.hal.device import Background, Device, Executable, Pending
from thalweg.hal.step import Params, StateBox, Step, StepBatch
from thalweg.models.layers.depth import PositionEmbedder, TextEmbedder
from thalweg.models.vision.audio_encoder import AudioEncoder
from thalweg.models.vision.clip_encoder import ClipEncoder
from thalweg.models.vision.sam import SamEncoder
from thalweg.models.vision.tower import VisionEncoder
from thalweg.models.vision.vq_encoder import VqEncoder
from thalweg.models.voices.code2wav import Code2WavNetwork
from thalweg.models.voices.mimi import MimiNetwork
from thalweg.models.voices.vits import VitsNetwork

Compile = Callable[[Step, Params, StateBox], Executable]
TOGETHER = 1 << 14
"""Most rows of inputs encoded in one batch (`MediaKind.count_rows`). One input may have more."""


@dataclass
class EncoderNetwork:
    """An encoder of the model, and its executables. Kinds of media may share one."""

    model: (
        VisionEncoder
        | SamEncoder
        | VqEncoder
        | AudioEncoder
        | ClipEncoder
        | VitsNetwork
        | MimiNetwork
        | Code2WavNetwork
        | TextEmbedder
        | PositionEmbedder
    )
    params: Params
    state: StateBox = field(default_factory=lambda: StateBox({}), init=False)
    carried: dict[str, Any] = field(default_factory=dict, init=False)
    """Arrays that the last launched part passes to the next."""
    compiled: dict[tuple[int, int], Executable] = field(default_factory=dict, init=False)
    """Executables by the layers that they run."""


class InputBatcher(Protocol):
    """A `MediaKind`, or a `Speaker`."""

    def build_batches(self, processor: Any, spec: Any, items: Sequence[Input]) -> tuple[StepBatch, ...]:
        """As `MediaKind` says."""

    def count_rows(self, processor: Any, item: Input) -> int | None:
        """As `MediaKind` says."""


@dataclass(frozen=True)
class KindEncoder:
    """The encoder of inputs of one kind. processor: of that kind."""

    kind: InputBatcher
    processor: Any
    network: EncoderNetwork
    open: bool = False
    """An item has as many vectors as the network gives, and not one for each placeholder. It is encoded separately."""

    def cost(self, item: Input) -> int:
        cost = self.kind.count_rows(self.processor, item)
        return TOGETHER if cost is None else cost


class EncoderRun:
    """One run of an encoder. Its parts are launched in order, and the last one's result has the vectors."""

    def __init__(self, encodes: KindEncoder, items: Sequence[Input], compile: Compile, whole: bool) -> None:
        """whole: all layers are launched at once."""
        self.items, self._network, self._compile, self._whole, self._next = items, encodes.network, compile, whole, 0
        self._open = encodes.open
        model = encodes.network.model
        batches = encodes.kind.build_batches(encodes.processor, model.spec, items)
        self._batch, backend = batches[0], model.attention
        if backend is not None:
            self._batch.metadata = tuple(backend[0].metadata(b, 0, backend[1], None) for b in batches)

    @property
    def layers_left(self) -> int:
        """Layers that have not been launched."""
        return self._network.model.depth - self._next

    def launch(self, layers: int) -> Pending:
        """Launch the next layers, at most so many, or all remaining ones."""
        network, first = self._network, self._next
        last = first + (self.layers_left if self._whole else min(layers, self.layers_left))
        if (first, last) not in network.compiled:
            step = network.model.part(first, last, network.carried)
            network.compiled[first, last] = self._compile(step, network.params, network.state)
        self._next = last
        return network.compiled[first, last](self._batch)

    def vectors(self, last: Pending) -> list[np.ndarray]:
        """f32[positions, width * hidden] of each item. last: the result of the last launch."""
        found, sizes = last.result().pooled, [item.positions.size for item in self.items]
        if found is not None and self._open:
            return [np.array(found, np.float32)]
        if found is None or len(found) != sum(sizes):
            raise RuntimeError(f"{sum(sizes)} placeholders for {0 if found is None else len(found)} vectors")
        return [np.array(part, np.float32) for part in np.split(np.asarray(found), np.cumsum(sizes)[:-1])]


class EncoderRunner:
    """Begins encodings. One thread drives it, and at most one encoding is in progress."""

    def __init__(self, device: Device, background: Background | None, kinds: Mapping[str, KindEncoder]) -> None:
        """background: where it runs. None: in the queue of the steps, between them. kinds: of inputs, by name."""
        self._device, self._kinds = device, kinds
        self.beside = background is not None
        self._compile = background.compile if background else lambda step, p, state: device.compile(step, p, state, None, None)
        self.items = 0
        """Items encoded, or begun."""

    def takes(self, item: Input) -> bool:
        """Is there an encoder for it?"""
        return item.kind in self._kinds

    def begin(self, waiting: Sequence[Input]) -> EncoderRun:
        """An encoding of the first item, and of later ones that share its batch."""
        encodes = self._kinds[waiting[0].kind]
        items, size = [waiting[0]], encodes.cost(waiting[0])
        for item in waiting[1:]:
            if self._device.pads or item.kind != waiting[0].kind:
                break
            size += encodes.cost(item)
            if size > TOGETHER:
                break
            items.append(item)
        encoding = EncoderRun(encodes, items, self._compile, self.beside or self._device.pads)
        self.items += len(items)
        return encoding
