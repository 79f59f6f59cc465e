"""Shared code of attention libraries: their refusals, the lengths they need, and a partner for the rest.

A library attends over pages and knows nothing of our batches. Its partner is the best paged attention available without it. The
partner writes keys and values, decides how a block lies in memory, and runs the steps that the library cannot. Libraries choose
their algorithm by the batch, so none of these is batch-invariant. Padding sequences come last in a batch. In a captured step
they have no keys. Elsewhere they are cut off.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from thalweg.backends.torch_gpu.attention import GatherAttention
from thalweg.hal.attention import AttentionBackend, AttnSpec
from thalweg.hal.kv import KVLayout
from thalweg.hal.step import SCRATCH, StepBatch, StepShape

DTYPES = ("bfloat16", "float16")
Made = TypeVar("Made")


class PagedBackend(Protocol):
    """Paged attention over blocks [2, block_tokens, kv_heads, head_dim]: keys, then values."""

    def supports(self, spec: AttnSpec) -> str | None: ...

    def layout(self, spec: AttnSpec, block_tokens: int) -> KVLayout: ...

    def metadata(self, batch: StepBatch, group: int, spec: AttnSpec, shape: StepShape | None) -> Any: ...

    def store(self, k: Tensor, v: Tensor, kv: Tensor, batch: StepBatch, group: int, spec: AttnSpec) -> None: ...

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, kv: Tensor, batch: StepBatch, group: int, spec: AttnSpec,
        sinks: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]: ...  # fmt: skip


def partner(arch: str) -> PagedBackend:
    """Triton's attention, or torch's operations where Triton is not installed or does not know the architecture."""
    try:
        from thalweg.backends.triton_kernels import library

        result: PagedBackend = library(arch).attention[0]  # type: ignore[assignment]
    except (ImportError, ValueError):
        result = GatherAttention()
    return result


class LibraryAttention(AttentionBackend):
    """A subclass gives a name, its refusals as class attributes, `plan` and `attend`."""

    largest: int = 256
    """Head size, which is a multiple of 8 (loads of 16 bytes)."""
    sizes: tuple[int, ...] = ()
    """The only head sizes it has kernels for. () = any up to `largest`."""
    softcap: bool = True
    blocks: tuple[int, ...] = ()
    """The only supported block sizes. () = any that `multiple` divides."""
    multiple: int = 1

    def __init__(self, partner: PagedBackend) -> None:
        self._partner = partner

    def supports(self, spec: AttnSpec) -> str | None:
        if spec.kind not in ("full", "window"):
            return f"runs kinds full and window, not {spec.kind}"
        if spec.dtype not in DTYPES:
            return f"runs {' and '.join(DTYPES)}, not {spec.dtype}"
        if spec.kv_dtype not in ("", spec.dtype):
            return f"the cache holds {spec.dtype}, not {spec.kv_dtype}"
        if spec.sinks:
            return "has no sinks"
        if spec.softcap and not self.softcap:
            return "has no soft cap"
        if spec.heads % spec.kv_heads:
            return f"{spec.heads} heads do not share {spec.kv_heads} KV heads evenly"
        if self.sizes and spec.head_dim not in self.sizes:
            return f"runs head sizes {', '.join(map(str, self.sizes))}, not {spec.head_dim}"
        if spec.head_dim % 8 or spec.head_dim > self.largest:
            return f"runs head sizes up to {self.largest} that 8 divides, not {spec.head_dim}"
        return self._partner.supports(spec)

    def refuses_blocks(self, block_tokens: int) -> str | None:
        if self.blocks and block_tokens not in self.blocks:
            return f"runs blocks of {' or '.join(map(str, self.blocks))} tokens, not {block_tokens}"
        if block_tokens % self.multiple:
            return f"runs blocks whose tokens {self.multiple} divides, not {block_tokens} (--block-size {self.multiple})"
        return None

    def layout(self, spec: AttnSpec, block_tokens: int) -> KVLayout:
        return self._partner.layout(spec, block_tokens)


def even(batch: StepBatch, shape: StepShape | None) -> bool:
    """Whether every sequence of this (host) batch has equally many new tokens by its bucket, so that the step may be
    captured. In an eager step, whether each has one new token."""
    return batch.uniform == 1 if shape is None else shape.uniform


def real(batch: StepBatch) -> int:
    """Sequences of this (host) batch that come before its padding."""
    there = np.flatnonzero(batch.slots != SCRATCH)
    return int(there[-1]) + 1 if there.size else 0


def lengths(batch: StepBatch) -> np.ndarray:
    """i32[S]: keys of each sequence of this (host) batch once the step's own are written. None for padding."""
    return np.where(batch.slots == SCRATCH, 0, batch.context + batch.query).astype(np.int32)


def starts(counts: Sequence[int] | np.ndarray) -> np.ndarray:
    """i32[n + 1]: where each of n neighbours begins, and where the last ends."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)


def window(spec: AttnSpec) -> tuple[int, int]:
    """(left, right): keys before and after a token's own that it sees. -1 = all. With a causal mask."""
    return (spec.window - 1, 0) if spec.window else (-1, -1)


def whole(out: Tensor, tokens: int) -> Tensor:
    """out [rows, heads, D], rows <= tokens -> [tokens, heads, D]: padding gives zeros."""
    return F.pad(out, (0, 0, 0, 0, 0, tokens - out.shape[0])) if out.shape[0] < tokens else out


class StepCache:
    """An object made once in a step for every layer of a group: kept until the group's next step."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[Any, Any]] = {}

    def of(self, plan: Any, group: int, make: Callable[[], Made]) -> Made:
        """plan: the result of `AttentionBackend.metadata`, the same object in every layer of one step."""
        held = self._made.get(group)
        if held is None or held[0] is not plan:
            held = self._made[group] = (plan, make())
        result: Made = held[1]
        return result


def pages(table: Tensor, lengths: Tensor, total: int, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """A table i32[n, B] as a list of the pages in use -> (first page of each, and the end: i32[n + 1]; the pages:
    i32[total]; tokens of each one's last page: i32[n]).

    lengths i32[n], on the device. total: pages of all sequences together, which the host knows, so that nothing
    waits."""
    device = table.device
    each = (lengths + (size - 1)) // size
    first = F.pad(torch.cumsum(each, 0), (1, 0)).to(torch.int32)
    seq = torch.repeat_interleave(torch.arange(table.shape[0], device=device), each, output_size=total)
    column = torch.arange(total, device=device) - first[seq]
    return first, table[seq, column].to(torch.int32), ((lengths - 1) % size + 1).to(torch.int32)
