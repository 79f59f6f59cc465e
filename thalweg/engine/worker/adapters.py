"""Adapters on a device: read and laid out on the host, written into slots of the state between steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from thalweg.checkpoint.adapters import read_adapter
from thalweg.errors import CheckpointError, ThalwegError
from thalweg.hal.device import Device
from thalweg.hal.step import StateBox
from thalweg.hal.weights import DENSE
from thalweg.models.adapter_arrays import SWITCHES, TargetArrays
from thalweg.models.adapter_layout import lay_out
from thalweg.models.adapters import AdapterPlan
from thalweg.models.files import Files
from thalweg.models.load import open_files
from thalweg.models.weights import Role, Source
from thalweg.quantization.format import Scheme


class BaseWeights:
    """Tensors of the base model for adapters that depend on them. Its files are opened when one is first read."""

    def __init__(self, model: Any, device: Device, path: Path, load_format: str) -> None:
        """As `AdapterStore`."""
        self._open = partial(open_files, model, path, device, load_format)
        self._formats: Scheme = model.formats
        self._files: Files | None = None

    def read(self, source: Source, role: Role, *, served: bool = False) -> torch.Tensor:
        """See `BaseReader`. UnsupportedModelError if the weights are not from files."""
        if self._files is None:
            self._files = self._open()
        return self._files.read_dense(source, role, self._formats.of(role, source.name) if served else DENSE)


class AdapterStore:
    """Loaded adapters, and the slots of the state."""

    def __init__(
        self, model: Any, device: Device, state: StateBox, path: Path, load_format: str, tensor_rank: int = 0
    ) -> None:  # fmt: skip
        """model: `models.build.Model`, built with an `AdapterPlan`. path, load_format: of its files, as it was loaded.
        tensor_rank: the rank with this share of the model."""
        self._room: AdapterPlan = model.adapters
        # The output matrix of a tied model has no name of its own otherwise, and adapters may change it alone.
        self._rename, self._dtype = replace(model.spec, tied=False).rename, getattr(torch, model.dtype)
        heads = {getattr(mixer, "head_dim", 0) for _, mixer in model.spec.mixers}
        self._head_dim = heads.pop() if len(heads) == 1 else 0
        self._device, self._state, self._tensor_rank = device, state, tensor_rank
        self._base = BaseWeights(model, device, path, load_format)
        self._loaded: dict[bytes, dict[str, TargetArrays]] = {}
        """By digest: the arrays of every target that an adapter changes."""
        self._read: dict[bytes, dict[str, TargetArrays]] = {}
        """The same of the adapter that was read last, until it is kept."""
        self._written: list[frozenset[tuple[str, str]]] = [frozenset()] * (self._room.adapters + 1)
        """(target, array) of any value, by slot."""

    @property
    def operations(self) -> Mapping[str, Callable[..., Any]]:
        """Operations of the worker."""
        return {
            "read_adapter": self.read, "keep_adapter": self.keep, "forget_adapter": self.forget, "write_adapter": self.write,
        }  # fmt: skip

    def read(self, path: str, digest: bytes = b"") -> bytes:
        """Read the adapter in this folder or file, checked against the model. Returns its digest. It is loaded once `keep` is
        called. digest: the required one; b"": any. CheckpointError and UnsupportedModelError name the file and the reason.
        Any thread may call it, while another one runs steps."""
        adapter = read_adapter(Path(path))
        if digest and adapter.digest != digest:
            raise CheckpointError(f"{path}: the adapter has changed since it was first read; load it again")
        try:
            laid_out = lay_out(
                adapter, self._room, self._rename, self._dtype, self._base.read, self._head_dim, self._tensor_rank
            )
        except ThalwegError as e:
            raise type(e)(f"{path}: {e}") from None
        self._read = {adapter.digest: laid_out}
        return adapter.digest

    def keep(self, digest: bytes) -> None:
        """Load the adapter that was read last. b"": drop it, as another rank could not read it."""
        if digest:
            self._loaded[digest] = self._read[digest]
        self._read = {}

    def forget(self, digest: bytes) -> None:
        """Free the host's memory. Slots keep their contents."""
        self._loaded.pop(digest, None)

    def write(self, slot: int, digest: bytes) -> int:
        """Put a loaded adapter into a slot, in order with the steps. Targets that it does not change get rank 0. Returns the
        level of the part `Adapters` in steps with this adapter."""
        adapter = self._loaded[digest]
        state = self._state.value["adapters"]
        written = frozenset((name, key) for name, target in adapter.items() for key in target.arrays)
        for name, key in sorted(self._written[slot] - written):
            if key in SWITCHES:
                self._write(state[name], slot, {key: torch.zeros(tuple(state[name][key].shape[1:]))})
        for name, target in adapter.items():
            self._write(state[name], slot, target.arrays)
        self._written[slot] = written
        return max(target.level for target in adapter.values())

    def _write(self, held: dict[str, Any], slot: int, values: Mapping[str, torch.Tensor]) -> None:
        for name, value in values.items():
            held[name] = self._device.write(held[name], slot, value)
