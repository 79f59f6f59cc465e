"""Compiled low-rank adapters against the op's body, at every instruction set. A row has the same bits alone, in any company
and by any number of threads."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from thalweg.backends.cpu.native import NativeLibrary, open_library
from thalweg.backends.cpu.native.lora import NativeLora
from thalweg.hal import ops

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 1e-2}
DTYPES = pytest.mark.parametrize("dtype", TOLERANCE, ids=["float32", "bfloat16"])


class Case:
    """Adapters of ranks 0 to `most`, NaN where nothing may be read, and rows that name them in any order."""

    def __init__(self, dtype: torch.dtype, tokens: int, inputs: int, rows: tuple[int, ...], most: int, slots: int) -> None:
        parts, rng = len(rows), torch.Generator().manual_seed(tokens)
        self.rows, self.count = rows, slots
        self.a = torch.randn(slots, parts, most, inputs, generator=rng) / inputs**0.5
        self.b = torch.randn(slots, most, sum(rows), generator=rng)
        self.ranks = torch.randint(0, most + 1, (slots, parts), generator=rng, dtype=torch.int32)
        self.ranks[-1] = most
        first = np.cumsum([0, *rows]).tolist()
        for s in range(slots):
            for i, rank in enumerate(self.ranks[s].tolist()):
                self.a[s, i, rank:], self.b[s, rank:, first[i] : first[i + 1]] = torch.nan, torch.nan
        self.a[0], self.b[0] = torch.nan, torch.nan
        self.a, self.b = self.a.flatten(1, 2).to(dtype), self.b.to(dtype)
        self.x, self.y = (torch.randn(tokens, n, generator=rng).to(dtype) for n in (inputs, sum(rows)))
        self.y[:, 0] = -0.0
        self.slots = torch.randint(0, slots, (tokens,), generator=rng, dtype=torch.int32)

    def run(self, kernel: NativeLora, index: torch.Tensor | None = None) -> torch.Tensor:
        """The rows of this index, which `read` names: all others have slots that are not there."""
        index = torch.arange(len(self.x)) if index is None else index
        found = kernel.rows(self.slots, torch.arange(len(self.x), dtype=torch.int32), index.to(torch.int32), count=self.count)
        return kernel.add(self.y[index], self.x[index], *found, self.a, self.b, self.ranks, rows=self.rows)

    def reference(self) -> torch.Tensor:
        found = ops.lora_rows.reference(self.slots, torch.arange(len(self.x)), count=self.count)
        return ops.lora_add.reference(self.y, self.x, *found, self.a, self.b, self.ranks, rows=self.rows)


@DTYPES
@pytest.mark.parametrize(
    ("tokens", "inputs", "rows", "most", "slots"),
    [(1, 33, (1,), 1, 2), (70, 257, (300, 65, 7), 13, 4), (300, 64, (64, 64), 16, 3), (9, 96, (31, 600), 40, 300)],
)
@pytest.mark.sampled(4)
def test_each_row_is_that_of_the_body_and_the_same_bits_in_any_company(
    library: NativeLibrary, dtype: torch.dtype, tokens: int, inputs: int, rows: tuple[int, ...], most: int, slots: int
) -> None:
    case, kernel = Case(dtype, tokens, inputs, rows, most, slots), NativeLora(library)
    got, want = case.run(kernel), case.reference()
    assert (got.float() - want.float()).abs().max() <= TOLERANCE[dtype] * want.float().abs().max()
    plain = case.slots == 0
    assert torch.equal(got[plain].view(torch.uint8), case.y[plain].view(torch.uint8)), "rows without an adapter keep their bits"
    one = NativeLora(open_library(1, library.level))
    assert torch.equal(case.run(one).view(torch.uint8), got.view(torch.uint8)), "by one thread"
    order = torch.randperm(tokens, generator=torch.Generator().manual_seed(1))
    for index in (order, order[:3], order[: tokens // 2].flip(0), *order[:4].split(1)):
        assert torch.equal(case.run(kernel, index).view(torch.uint8), got[index].view(torch.uint8))


def test_more_rows_than_are_shrunk_at_a_time(library: NativeLibrary) -> None:
    case = Case(torch.float32, 700, 16, (40,), 8192, 3)
    got, want = case.run(NativeLora(library)), case.reference()
    assert (got - want).abs().max() <= 2e-5 * want.abs().max()


@DTYPES
def test_gains_and_biases_are_those_of_the_body_and_other_outputs_keep_their_bits(
    library: NativeLibrary, dtype: torch.dtype
) -> None:
    rng = torch.Generator().manual_seed(1)
    y, vectors = torch.randn(9, 1301, generator=rng).to(dtype), torch.randn(4, 2, 1301, generator=rng)
    vectors[0], vectors[2, :, ::2], y[:, ::2] = torch.nan, 0, -0.0
    slots = torch.tensor([0, 1, 2, 3, 2, 0, 1, 1, 3], dtype=torch.int32)
    got, want = NativeLora(library).rescale(y.clone(), slots, vectors), ops.lora_rescale.reference(y, slots, vectors)
    assert (got.float() - want.float()).abs().nan_to_num(9).max() <= TOLERANCE[dtype] * want.float().abs().max()
    for rows, step in ((slots == 0, 1), (slots == 2, 2)):
        kept, held = y[rows][:, ::step].contiguous(), got[rows][:, ::step].contiguous()
        assert torch.equal(held.view(torch.uint8), kept.view(torch.uint8))


def test_slots_that_are_not_there_count_as_none_and_arrays_that_do_not_fit_are_refused(library: NativeLibrary) -> None:
    kernel, seq = NativeLora(library), torch.arange(5, dtype=torch.int32)
    slots, order, starts = kernel.rows(torch.tensor([2, 7, 1, -4, 2], dtype=torch.int32), seq, count=3)
    assert (slots.tolist(), order.tolist(), starts.tolist()) == ([2, 0, 1, 0, 2], [1, 3, 2, 0, 4], [0, 2, 3, 5])
    case = Case(torch.float32, 5, 8, (6,), 2, 3)
    arrays = (case.y, case.x, slots, order, starts, case.a, case.b, case.ranks)
    for i in (0, 1, 3, 4, 5, 6, 7):
        cut = [*arrays[:i], arrays[i][..., :-1], *arrays[i + 1 :]]
        with pytest.raises(ValueError, match="do not fit"):
            kernel.add(*cut, rows=(6,))
    with pytest.raises(ValueError, match="do not fit"):
        kernel.add(*arrays, rows=(3, 2))
    with pytest.raises(ValueError, match="int32"):
        kernel.rows(slots.long(), seq, count=3)
