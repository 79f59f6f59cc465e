"""Attention over caches with keys in the order of tokens, for layers that also read selected keys from them. Each token reads
its keys where they lie, so a step looks at no value and is recorded."""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor

from thalweg.backends.cpu.native import NativeLibrary
from thalweg.backends.cpu.native.sparse import MOST_DIM, UNIT, NativeSparse
from thalweg.backends.torch_native.attention import TorchPagedAttention, write_rows
from thalweg.hal.attention import AttnSpec
from thalweg.hal.step import StepBatch


class NativeTokenAttention(TorchPagedAttention):
    """The cache and its layout are those of `TorchPagedAttention`."""

    spans = biased = False
    known_as = ()

    def __init__(self, library: NativeLibrary) -> None:
        super().__init__()
        self._sparse = NativeSparse(library)
        self.name = f"native-token-{library.level}"

    def supports(self, spec: AttnSpec) -> str | None:
        if spec.kind not in ("full", "window"):
            return f"runs kinds full and window, not {spec.kind}"
        if spec.kv_dtype not in ("", spec.dtype):
            return f"the cache holds {spec.dtype}, not {spec.kv_dtype}"
        if spec.head_dim % UNIT or spec.head_dim > MOST_DIM:
            return f"heads are multiples of {UNIT} up to {MOST_DIM}, not {spec.head_dim}"
        if spec.reach:
            return "adds nothing to scores by distance"
        return super().supports(spec)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, kv: Tensor, batch: StepBatch, group: int, spec: AttnSpec,
        sinks: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        plan = cast(dict[str, Any], batch.metadata[group]) if batch.metadata else {}
        size, table = kv.shape[2], batch.block_tables[group]
        if "write" not in plan:
            plan["write"] = write_rows(batch, group, kv.shape[1] * size, size)
        flat = kv.view(-1, kv.shape[-2], kv.shape[-1])
        flat.index_copy_(0, plan["write"], k)
        flat.index_copy_(0, plan["write"] + size, v)
        longest = table.shape[1] * size
        window = min(spec.window, longest) if spec.kind == "window" else longest
        return self._sparse.attend_recent(
            q, kv[:, 0], kv[:, 1], table, batch.token_seq, batch.positions, spec.scale, window
        ), kv
