"""Linear layers hold no more memory after many row counts than after a few."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from amounts import some

from thalweg.backends.torch_native.linear import LINEAR
from thalweg.hal.weights import DENSE, QTensor

MIB = 1 << 20


def held() -> int:
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("RssAnon:"))
    return int(line.split()[1]) * 1024


@pytest.mark.slow
def test_prompts_of_every_length_leave_no_scratch_memory_behind() -> None:
    """One product of 300 rows needs 4.6 MB of results; kept for each of 75 row counts that would be 250 MB."""
    kernel = next(k for k in LINEAR if k.name == "onednn")
    assert kernel.pack is not None
    weight = kernel.pack(QTensor(DENSE, (4096, 256), {"weight": torch.randn(4096, 256)}))
    with torch.inference_mode():
        for n in (64, 128, 192, 256, 300):
            kernel.run(torch.ones(n, 256), weight)
        before = held()
        for n in range(150, 300, some(2, 1)):
            kernel.run(torch.ones(n, 256), weight)
    assert held() - before < some(75, 150) * MIB  # what the results themselves leave in the heap


def test_rows_have_the_same_bits_whatever_tile_they_fall_into() -> None:
    kernel = next(k for k in LINEAR if k.name == "onednn")
    assert kernel.pack is not None
    weight, bias = torch.randn(96, 200), torch.randn(96)
    packed = kernel.pack(QTensor(DENSE, (96, 200), {"weight": weight}))
    x = torch.randn(700, 200)
    with torch.inference_mode():
        whole = kernel.run(x, packed, bias)
        torch.testing.assert_close(whole, x @ weight.T + bias, rtol=1e-4, atol=1e-4)
        for n in (1, 63, 64, 65, 255, 256, 257, 511, 600):
            assert torch.equal(kernel.run(x[:n], packed, bias), whole[:n])
