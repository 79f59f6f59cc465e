"""Functions of single values: the bits of one depend on that value alone. Torch computes whole vectors by one routine and what
is left over at the end of an array, or of a thread's share of it, by another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
from torch import Tensor

from thalweg.hal.ops import pointwise
from thalweg.hal.ops.activation import ACTIVATIONS, activate

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": pointwise.sigmoid,
    "softplus": pointwise.softplus,
    "exponential": lambda x: pointwise.exponential(-x.abs()),
    **{act: partial(activate, act=act) for act in ACTIVATIONS},
}


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.sampled(4)
def test_a_value_has_the_same_bits_wherever_it_lies(name: str, dtype: torch.dtype, two_threads: None) -> None:
    """Among few or many, at the begin or the end, in rows of their own or halves of others, on one thread or two."""
    f, x = FUNCTIONS[name], (3 * torch.randn(75_000)).to(dtype)
    want = f(x)
    for n in range(1, 100):
        assert torch.equal(f(x[:n].clone()), want[:n])
        assert torch.equal(f(x[n : 2 * n]), want[n : 2 * n])
    assert torch.equal(f(x[:65_537]), want[:65_537])
    assert torch.equal(f(x[:6000].view(20, 300).chunk(2, -1)[1]), want[:6000].view(20, 300).chunk(2, -1)[1])
    assert torch.equal(f(x[:6000].view(20, 300).T), want[:6000].view(20, 300).T)
