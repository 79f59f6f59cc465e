"""KV blocks of all layers of a group, as one piece, out of the state and into it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

import thalweg
from thalweg.checkpoint.identity import model_digest
from thalweg.engine.worker.stages.open import BuildInputs
from thalweg.errors import ConfigError
from thalweg.hal.device import CompletedExport, Device, Export, row_bytes
from thalweg.hal.kv import KVLayout, KVSpec
from thalweg.hal.step import StateBox
from thalweg.options.kv_store import transfer

FORMAT = 1
"""Version of a stored block. It changes with the meaning of the bytes."""
Layouts = Sequence[KVLayout | tuple[KVLayout, ...]]
"""Layouts of each cache of a state, as `models.build.Model` has them."""


class BlockMover:
    """Copies blocks out of a state and into it. Its operations are those of `engine.control.store.mover.ExecutorMover`."""

    def __init__(
        self, device: Device, state: StateBox, layer_group: Sequence[int], groups: int, signature: bytes, rank: int = 0
    ) -> None:  # fmt: skip
        """layer_group: the KV group of each cache of the state. rank: place of this worker's part in imported blocks, which
        hold those of all ranks."""
        self._device, self._state = device, state
        self._caches = [[i for i, of in enumerate(layer_group) if of == g] for g in range(groups)]
        self._signature, self._exports, self._rank = signature, dict[int, Export](), rank
        self.block_bytes: Sequence[int] = [sum(map(row_bytes, self._arrays(g))) for g in range(groups)]

    def operations(self) -> dict[str, Callable[..., Any]]:
        return {
            "describe_blocks": lambda: (list(self.block_bytes), self._signature),
            "export_blocks": self._export,
            "export_ready": lambda number: self._exports[number].ready(),
            "take_export": lambda number: self._exports.pop(number).result(),
            "import_blocks": self._import,
        }

    def _export(self, number: int, group: int, blocks: np.ndarray) -> None:
        """Start an export, which has this number until it is taken."""
        empty = not self.block_bytes[group]
        result = (
            CompletedExport(np.empty((len(blocks), 0), np.uint8)) if empty else self._device.export(self._arrays(group), blocks)
        )
        self._exports[number] = result

    def _import(self, group: int, blocks: np.ndarray, rows: np.ndarray) -> None:
        if not (own := self.block_bytes[group]):
            return
        if rows.shape[1] != own:
            rows = np.ascontiguousarray(rows[:, self._rank * own : (self._rank + 1) * own])
        written = iter(self._device.import_(self._arrays(group), blocks, rows))
        kv = list(self._state.value["kv"])
        for i in self._caches[group]:
            kv[i] = tuple(next(written) for _ in kv[i]) if isinstance(kv[i], tuple) else next(written)
        self._state.value = {**self._state.value, "kv": kv}

    def _arrays(self, group: int) -> list[Any]:
        kv = self._state.value["kv"]
        return [part for i in self._caches[group] for part in (kv[i] if isinstance(kv[i], tuple) else (kv[i],))]


def check_moves(inputs: BuildInputs) -> None:
    """ConfigError where a store is configured, and the device cannot move blocks or the model cannot share them."""
    if transfer(inputs.args) is None:
        return
    if not inputs.device.moves_blocks:
        raise ConfigError(f"kv_transfer_config: platform {inputs.platform.name} moves no KV blocks; omit it")
    if not inputs.args.enable_prefix_caching:
        raise ConfigError("kv_transfer_config: sequences of this model share no prefixes, so no stored block would be found")


def block_operations(
    inputs: BuildInputs, state: StateBox, layer_group: Sequence[int], groups: Sequence[KVSpec], layouts: Layouts,
    facts: Sequence[str],
) -> dict[str, Callable[..., Any]]:  # fmt: skip
    """Operations of a worker: none without a store. facts: settings, in addition to model and device, on which the values of
    a block depend. They must be equal for two processes to exchange blocks, so that no bit of an answer depends on the origin
    of its prefix."""
    if transfer(inputs.args) is None:
        return {}
    h = hashlib.blake2b(digest_size=32)
    for part in (*_model_facts(inputs), *facts, *_laid_out(groups, layer_group, layouts)):
        h.update(b"%d:" % len(part) + part.encode("utf-8", "surrogateescape"))
    rank = inputs.place.tensor_rank
    return BlockMover(inputs.device, state, layer_group, len(groups), h.digest(), rank).operations()


def _model_facts(inputs: BuildInputs) -> Iterator[str]:
    args, device = inputs.args, inputs.device
    yield f"{FORMAT} {thalweg.__version__} {inputs.platform.name} {device.info.name} {device.comm.size}"
    yield f"{args.load_format} {args.seed if args.load_format == 'dummy' else ''} {model_digest(inputs.path).hex()}"
    yield repr(sorted((args.hf_overrides or {}).items()))


def _laid_out(groups: Sequence[KVSpec], layer_group: Sequence[int], layouts: Layouts) -> Iterator[str]:
    for g in groups:
        yield f"{g.kind} {g.block_tokens} {g.window} {g.top}"
    for of, each in zip(layer_group, layouts, strict=True):
        for layout in each if isinstance(each, tuple) else (each,):
            yield f"{of} {layout.signature} {layout.dtype} {layout.shape}"
