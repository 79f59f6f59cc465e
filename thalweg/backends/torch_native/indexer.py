"""Keys of indexers, written to their pages without a copy of the pages."""

from __future__ import annotations

from torch import Tensor

from thalweg.hal.op import Kernel
from thalweg.hal.ops.indexer import slot_mapping


def _write(held: Tensor, new: Tensor, table: Tensor, token_seq: Tensor, positions: Tensor, slots: Tensor) -> Tensor:
    return held.index_put_(slot_mapping(held, table, token_seq, positions, slots), new)


INDEXER = (Kernel("index_write", "in-place", _write, batch_invariant=True),)
