"""Small operations of recorded steps as numpy calls: the same bits as torch's, in the memory of the result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from thalweg.backends.cpu.small_ops import aten, direct_form, numpy_form

I32 = torch.int32
HALF = torch.randn(4, 6, dtype=torch.bfloat16)
WHOLE, OTHER = torch.arange(24, dtype=I32).view(4, 6) - 9, torch.arange(24, dtype=I32).view(4, 6).flip(0)
ROWS = torch.tensor([3, 0, 3], dtype=torch.int64)
NUMBERS = torch.tensor([1.0, float("nan"), float("inf"), -2.0])
CALLS: list[tuple[Any, tuple[Any, ...]]] = [
    (aten.add.Tensor, (WHOLE, OTHER)), (aten.add.Tensor, (WHOLE, 3)), (aten.sub.Tensor, (WHOLE[:, 0], OTHER[:, 1])),
    (aten.add.Tensor, (WHOLE, OTHER.long())), (aten.minimum.default, (WHOLE, OTHER[:, :1])),
    (aten.maximum.default, (WHOLE, OTHER)), (aten.clamp.default, (WHOLE, None, 5)), (aten.clamp.default, (WHOLE, 0)),
    (aten.bitwise_not.default, (WHOLE > 0,)), (aten.eq.Tensor, (WHOLE, OTHER)), (aten.lt.Scalar, (NUMBERS, float("inf"))),
    (aten.ge.Scalar, (WHOLE, 0)), (aten.index_select.default, (HALF, 0, ROWS)), (aten.index.Tensor, (HALF, [ROWS - 4])),
    (aten.index_select.default, (WHOLE > 0, 0, ROWS.int())), (aten.to.dtype, (WHOLE, torch.int64)),
    (aten.to.dtype, (WHOLE > 0, I32)), (aten.cat.default, ([HALF, HALF[:2]],)), (aten.cat.default, ([HALF, HALF[:, 1:]], -1)),
    (aten.stack.default, ([WHOLE[0], OTHER[1]], 1)), (aten.pad.default, (WHOLE, [0, 2])), (aten.sum.dim_IntList, (WHOLE, [1])),
    (aten.sum.dim_IntList, (WHOLE > 0, [1])), (aten.where.self, ((WHOLE > 0)[:, :1], HALF, -HALF)),
    (aten.where.ScalarOther, (WHOLE > 0, WHOLE, 7)),
]  # fmt: skip


@pytest.mark.parametrize(("op", "args"), CALLS, ids=lambda v: str(v) if callable(v) else "")
def test_a_form_gives_the_bits_of_the_operation(op: Callable[..., Any], args: tuple[Any, ...]) -> None:
    wanted = op(*args)
    out = torch.empty_like(wanted).fill_(1)
    form = numpy_form(op, args, {}, out)
    assert form is not None
    form()
    assert torch.equal(out, wanted)


FRACTIONS, COLUMN = torch.randn(3, 70), torch.rand(3, 1)
DIRECT: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
    (aten.add.Tensor, (HALF, HALF[:1]), {}), (aten.add.Tensor, (FRACTIONS, 1), {}), (aten.mul.Tensor, (HALF, 0.3), {}),
    (aten.add.Tensor, (FRACTIONS, COLUMN), {"alpha": 0.3}), (aten.sub.Tensor, (HALF, FRACTIONS[:1, :6]), {}),
    (aten.mul.Tensor, (FRACTIONS, COLUMN), {}), (aten.div.Tensor, (FRACTIONS, COLUMN), {}), (aten.neg.default, (HALF,), {}),
    (aten.sqrt.default, (COLUMN,), {}), (aten.rsqrt.default, (COLUMN,), {}), (aten.exp.default, (FRACTIONS,), {}),
    (aten.sigmoid.default, (torch.stack([FRACTIONS, FRACTIONS], -1)[..., 0],), {}), (aten.tanh.default, (HALF,), {}),
    (aten.mean.dim, (FRACTIONS, [-1], True), {}), (aten.sum.dim_IntList, (FRACTIONS, [-1]), {}),
    (aten.sum.dim_IntList, (HALF, [0], True), {"dtype": torch.float32}), (aten.to.dtype, (FRACTIONS, torch.bfloat16), {}),
    (aten._to_copy.default, (HALF,), {"dtype": torch.float32}), (aten.mul.Tensor, (FRACTIONS.T, COLUMN.T), {}),
    (aten.clamp.default, (FRACTIONS, 0.1), {}), (aten.clamp.default, (HALF, None, 0.5), {}),
]  # fmt: skip


@pytest.mark.parametrize(("op", "args", "static"), DIRECT, ids=lambda v: str(v) if callable(v) else "")
def test_arithmetic_that_writes_to_its_place_gives_the_bits_of_the_operation(
    op: Callable[..., Any], args: tuple[Any, ...], static: dict[str, Any]
) -> None:
    wanted = op(*args, **static)
    out = torch.empty_like(wanted).fill_(1)
    at, form = out.data_ptr(), direct_form(op, args, static, out)
    assert form is not None
    form()
    assert torch.equal(out, wanted)
    assert (out.data_ptr(), direct_form(aten.softmax.int, args, static, out)) == (at, None)


def test_a_row_is_written_where_it_belongs() -> None:
    wanted, held, rows = HALF.clone(), HALF.clone(), torch.tensor([2, 1])
    source = torch.randn(2, 6, dtype=torch.bfloat16)
    wanted.index_copy_(0, rows, source)
    form = numpy_form(aten.index_copy_.default, (held, 0, rows, source), {}, None)
    assert form is not None
    form()
    assert torch.equal(held, wanted)


@pytest.mark.parametrize(("op", "args"), [
    (aten.add.Tensor, (NUMBERS, NUMBERS)), (aten.clamp.default, (NUMBERS, 0.0)), (aten.to.dtype, (NUMBERS, torch.bfloat16)),
    (aten.lt.Scalar, (HALF, 0.5)), (aten.index_select.default, (HALF, 1, ROWS)),
], ids=lambda v: str(v) if callable(v) else "")  # fmt: skip
def test_arithmetic_of_fractions_is_left_to_torch(op: Callable[..., Any], args: tuple[Any, ...]) -> None:
    assert numpy_form(op, args, {}, op(*args)) is None
    assert numpy_form(aten.add.Tensor, (WHOLE, OTHER), {"alpha": 2}, WHOLE.clone()) is None
