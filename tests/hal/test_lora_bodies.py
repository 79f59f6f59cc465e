"""Adapters of many requests in one batch, against each request's own merged weight."""

from __future__ import annotations

import torch

from thalweg.hal import ops


def test_each_token_gets_what_its_own_merged_weight_would_give() -> None:
    """W + alpha / rank * B A, as adapters are merged; slot 0 is the plain layer, whatever lies in it."""
    torch.manual_seed(0)
    w, a, b = torch.randn(40, 32), torch.randn(4, 8, 32), torch.randn(4, 40, 8)
    x, slots, scale = torch.randn(7, 32), torch.tensor([0, 1, 3, 0, 1, 2, 3], dtype=torch.int32), 16 / 8
    found = ops.lora_rows(slots, torch.arange(7, dtype=torch.int32), count=4)
    ranks = torch.full((4, 1), 8, dtype=torch.int32)
    got = ops.lora_add(x @ w.T, x, *found, a, b.transpose(1, 2) * scale, ranks, rows=(40,))
    for row, out, s in zip(x, got, slots.tolist(), strict=True):
        merged = w if s == 0 else w + scale * b[s] @ a[s]
        torch.testing.assert_close(out, merged @ row, rtol=1e-4, atol=1e-4)
