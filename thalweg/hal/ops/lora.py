"""Low-rank adapters (LoRA, Hu et al. 2021) of many requests in one batch: y + B (A x), each row by the adapter of its slot."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from thalweg.hal.op import Sample, op
from thalweg.hal.ops.activation import glu
from thalweg.hal.ops.matmul import linear
from thalweg.hal.ops.quantise import dequantise
from thalweg.hal.weights import DENSE, WeightFormat

NONE = 0
"""The slot of rows without an adapter. Its arrays are never read."""
SLOTS, RANK, UNREAD = 5, 8, 1e4
ALIGNED = 16


def _row_arguments(slots: np.ndarray) -> tuple[np.ndarray, ...]:
    """slots, order and starts, as `lora_rows` returns them."""
    order = np.argsort(slots, kind="stable").astype(np.int32)
    return slots, order, np.searchsorted(slots[order], np.arange(SLOTS + 1)).astype(np.int32)


def _rows_sample(tokens: int, *read: int) -> Sample:
    def make(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        slot, seq = np.array([3, 0, 1], np.int32), rng.integers(0, 3, tokens).astype(np.int32)
        return (slot, seq, np.array(read, np.int32)) if read else (slot, seq)

    return Sample(f"{tokens} tokens, {len(read) or 'all'} read", make, {"count": SLOTS})


def _add_sample(tokens: int, width: int, rows: tuple[int, ...]) -> Sample:
    """Values that may not be read are UNREAD. Slot 2 has lower ranks than RANK, slot 3 changes no output, slot 4 has no row."""

    def make(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        parts = len(rows)
        a = rng.normal(size=(SLOTS, parts, RANK, width)) / width**0.5
        b, ranks = rng.normal(size=(SLOTS, RANK, sum(rows))), np.full((SLOTS, parts), RANK, np.int32)
        ranks[2], ranks[3] = np.arange(parts) + 1, 0
        for part, (end, count) in enumerate(zip(np.cumsum(rows), rows, strict=True)):
            a[2, part, part + 1 :], b[2, part + 1 :, end - count : end] = UNREAD, UNREAD
        a[NONE], b[NONE], a[3], b[3] = UNREAD, UNREAD, UNREAD, UNREAD
        y, x = (rng.normal(size=(tokens, n)).astype(np.float16) for n in (sum(rows), width))
        slots = rng.permutation((np.arange(tokens) + 2) % (SLOTS - 1)).astype(np.int32)
        flat = a.reshape(SLOTS, parts * RANK, width).astype(np.float16)
        return y, x, *_row_arguments(slots), flat, b.astype(np.float16), ranks

    return Sample(f"{tokens}x{width} to {'+'.join(map(str, rows))}", make, {"rows": rows})


@op(samples=[_rows_sample(9), _rows_sample(12, 3, 0, 11)])
def lora_rows(slot: Tensor, seq: Tensor, read: Tensor | None = None, *, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Which rows of a step share an adapter. Computed once per step, for all its `lora_add`.

    slot i32[S]: of each sequence. seq i32[T]: the sequence of each token. read i32[N]: tokens that have a row; None: all T.
    count: slots. Returns slots i32[N], each row's; order i32[N], rows in the order of their slots, those of a slot in their own
    order; starts i32[count + 1]: rows of slot s lie from starts[s] to starts[s + 1] - 1 of order."""
    slots = slot.index_select(0, seq if read is None else seq.index_select(0, read))
    order = torch.argsort(slots, stable=True)
    each = torch.arange(count + 1, dtype=slots.dtype, device=slots.device)
    starts = (slots[None, :] < each[:, None]).sum(1)
    return slots, order.to(torch.int32), starts.to(torch.int32)


@op(
    samples=[_add_sample(1, 64, (48,)), _add_sample(9, 160, (96, 33, 33)), _add_sample(70, 70, (150, 20))],
    tolerances={"float32": 1e-5, "bfloat16": 1e-2},
)
def lora_add(
    y: Tensor, x: Tensor, slots: Tensor, order: Tensor, starts: Tensor, a: Tensor, b: Tensor, ranks: Tensor, *,
    rows: tuple[int, ...],
) -> Tensor:  # fmt: skip
    """y [T, N] + B (A x) of each row's adapter. Rows of slot 0, and outputs of rank 0, keep their bits.

    x [T, H]. slots, order, starts: as `lora_rows` returns them. rows: outputs of each part of N. Every part has its own A:
    a [slots, parts * rank, H]. b [slots, rank, N] holds the scale alpha / rank. ranks i32[slots, parts]: how many of `rank` an
    adapter has. The rest of a and b is not read. A x and the sum over ranks are float32, and only the result is rounded to y's
    type. The result may lie in the memory of y: callers use the returned array."""
    # Matrix libraries sum a width that is no multiple of 16 in an order that depends on the number of rows.
    wide, result, first = pad(x.to(torch.float32), (0, -x.shape[1] % ALIGNED)), [], 0
    for i, count in enumerate(rows):
        part = y[:, first : first + count]
        for s in range(NONE + 1, a.shape[0]):
            part = torch.where(
                (slots == s)[:, None], _change(part, wide, a[s], b[s, :, first : first + count], i, ranks[s, i]), part
            )
        result.append(part)
        first += count
    return torch.cat(result, 1)


def _rescale_sample(tokens: int, outputs: int) -> Sample:
    """Slot 2 changes every other output, slot 3 none."""

    def make(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        y = rng.normal(size=(tokens, outputs)).astype(np.float16)
        vectors = rng.normal(size=(SLOTS, 2, outputs)).astype(np.float32)
        vectors[NONE], vectors[2, :, ::2], vectors[3] = UNREAD, 0, 0
        return y, (np.arange(tokens) % (SLOTS - 1)).astype(np.int32), vectors

    return Sample(f"{tokens}x{outputs}", make)


@op(samples=[_rescale_sample(1, 48), _rescale_sample(9, 33)], tolerances={"float32": 1e-6, "bfloat16": 1e-2})
def lora_rescale(y: Tensor, slots: Tensor, vectors: Tensor) -> Tensor:
    """y [T, N] -> y + y * vectors[s, 0] + vectors[s, 1], s the slot of each row: gains less 1, and biases.

    slots i32[T]. vectors f32[slots, 2, N]. Computed in float32. Rows of slot 0, and outputs where both are zero, keep their
    bits."""
    gain, bias = vectors[slots.long()].unbind(1)
    same = (slots == NONE)[:, None] | ((gain == 0) & (bias == 0))
    wide = y.to(torch.float32)
    return torch.where(same, y, (wide + wide * gain + bias).to(y.dtype))


def _experts_sample(tokens: int, width: int, inner: int, experts: int, weight: WeightFormat = DENSE) -> Sample:
    """Slot 2 changes one expert, slot 3 none."""

    def make(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        half = np.float16
        ids = np.stack([rng.permutation(experts)[:2] for _ in range(tokens)]).astype(np.int32)
        shapes = ((2 * RANK, width), (RANK, 2 * inner), (RANK, inner), (RANK, width))
        pairs = [rng.normal(size=(SLOTS, experts, *shape)) / shape[1] ** 0.5 for shape in shapes]
        ranks = np.full((SLOTS, experts, 3), RANK, np.int32)
        ranks[2, 1:], ranks[3] = 0, 0
        ranks[4] = np.arange(3 * experts).reshape(experts, 3) % (RANK + 1)
        for array in pairs:
            array[NONE], array[2, 1:], array[3] = UNREAD, UNREAD, UNREAD
        slots = ((np.arange(tokens) + 1) % SLOTS).astype(np.int32)
        return (
            rng.normal(size=(tokens, width)).astype(half), ids, rng.uniform(0.1, 1, (tokens, 2)).astype(np.float32),
            (rng.normal(size=(experts * 2 * inner, width)) / width**0.5).astype(half),
            (rng.normal(size=(experts * width, inner)) / inner**0.5).astype(half),
            slots, *(array.astype(half) for array in pairs), ranks,
        )  # fmt: skip

    static = {"weight": weight, "group": weight.group, "down_weight": weight, "down_group": weight.group}
    name = f"{tokens}x{width}x{inner}" + ("" if weight == DENSE else f"-{weight}")
    return Sample(name, make, {"experts": experts, "act": "silu"} | static)


@op(
    samples=[
        _experts_sample(1, 64, 32, 3), _experts_sample(9, 48, 16, 4), _experts_sample(5, 64, 32, 3, WeightFormat("int", 8)),
    ],
    tolerances={"float32": 1e-5, "bfloat16": 2e-2},
)  # fmt: skip
def lora_experts(
    x: Tensor, ids: Tensor, weights: Tensor, gate_up: Tensor | Mapping[str, Tensor], down: Tensor | Mapping[str, Tensor],
    slots: Tensor, gate_up_a: Tensor, gate_up_b: Tensor, down_a: Tensor, down_b: Tensor, ranks: Tensor, *, experts: int,
    act: str = "silu", group: int = 0, down_group: int = 0,
) -> Tensor:  # fmt: skip
    """`experts` with gates and without biases, each expert with the adapter of the row's slot.

    x, ids, weights, gate_up, down, group, down_group: as `experts` has them, and so are the facts at bind. A kernel shares
    packed weights with the kernel of `experts` that has the same `Pack`. slots i32[T]: of each row. Matrices of each expert as
    in `lora_add`, gate and up being two parts: gate_up_a [slots, experts, 2 * rank, H], gate_up_b [slots, experts, rank, 2 F],
    down_a [slots, experts, rank, F], down_b [slots, experts, rank, H], ranks i32[slots, experts, 3] of gate, up and down.
    Products are rounded before the adapter is added. Rows of slot 0, or whose experts have only ranks of 0, have the bits of
    `experts`."""
    gate_up = gate_up if isinstance(gate_up, Tensor) else dequantise(gate_up, group, x.dtype)
    down = down if isinstance(down, Tensor) else dequantise(down, down_group, x.dtype)
    out, inner = torch.zeros(x.shape, dtype=torch.float32, device=x.device), down.shape[1]
    rows = slots, slots, slots  # order and starts, which the body does not read
    for e, (w1, w2) in enumerate(zip(gate_up.chunk(experts), down.chunk(experts), strict=True)):
        first = lora_add.reference(
            linear.reference(x, w1), x, *rows, gate_up_a[:, e], gate_up_b[:, e], ranks[:, e, :2], rows=(inner, inner)
        )
        gate, up = first.chunk(2, -1)
        glued = glu(gate, up, act)
        y = lora_add.reference(
            linear.reference(glued, w2), glued, *rows, down_a[:, e], down_b[:, e], ranks[:, e, 2:], rows=(x.shape[1],)
        )
        share = torch.where(ids == e, weights, 0.0).sum(-1, keepdim=True)
        out = out + share * y.to(torch.float32)
    return out.to(x.dtype)


def _change(part: Tensor, x: Tensor, a: Tensor, b: Tensor, i: int, rank: Tensor) -> Tensor:
    """The outputs of part i of every row, with the adapter of a [parts * rank, H] and b [rank, outputs]."""
    held = (torch.arange(b.shape[0], device=x.device) < rank)[:, None]
    down = torch.where(held, a[i * b.shape[0] : (i + 1) * b.shape[0]].to(torch.float32), 0.0)
    down = pad(down, (0, x.shape[1] - down.shape[1]))
    up = torch.where(held, b.to(torch.float32), 0.0)
    added = linear.reference(linear.reference(x, down), up.T)
    return torch.where(rank > 0, (part.to(torch.float32) + added).to(part.dtype), part)
