"""Compiled products with a matrix per head against the op's body, at every instruction set. A token has the same bits alone, in
company, and where its heads lie in a wider row."""

from __future__ import annotations

import pytest
import torch

from thalweg.backends.cpu.native import NativeLibrary
from thalweg.backends.cpu.native.heads import kernels
from thalweg.hal import ops
from thalweg.hal.op import Binder
from thalweg.hal.weights import DENSE, QTensor

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 1e-2}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=["float32", "bfloat16"])
@pytest.mark.parametrize(("heads", "inputs", "outputs", "turned"), [(5, 24, 96, True), (64, 512, 20, False)])
def test_every_head_has_a_matrix_of_its_own(
    library: NativeLibrary, dtype: torch.dtype, heads: int, inputs: int, outputs: int, turned: bool
) -> None:
    tokens = 70  # of 64 heads, more than are made ready at once
    facts = {"heads": heads, "out_features": outputs, "turned": turned}
    bound = Binder(kernels(library)).bind(ops.head_linear, dtype=str(dtype).removeprefix("torch."), in_features=inputs, **facts)
    assert bound.choice.kernel.startswith("native-")
    weight = (torch.randn(heads * (inputs if turned else outputs), outputs if turned else inputs) / inputs**0.5).to(dtype)
    packed = bound.pack(QTensor(DENSE, (weight.shape[0], weight.shape[1]), {"weight": weight}, heads))
    wide = torch.randn(tokens, heads, inputs + 7).to(dtype)
    x = wide[..., 3:-4]
    got, want = bound(x, packed), ops.head_linear.reference(x, weight, **facts)
    assert got.shape == want.shape
    assert (got.float() - want.float()).abs().max() <= TOLERANCE[dtype] * want.float().abs().max()
    assert torch.equal(bound(x[:1].contiguous(), packed), got[:1])
    assert torch.equal(bound(x[33:50], packed), got[33:50])
    assert bound(x[:0], packed).shape == (0, heads, outputs)
    with pytest.raises(ValueError, match="does not fit"):
        bound(x[..., 1:], packed)
