"""A weight per word of the vocabulary, as in SPLADE."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from thalweg.hal import ops
from thalweg.hal.step import Array, StepBatch
from thalweg.models.context import Context
from thalweg.models.heads.dense import Projection
from thalweg.models.tail import Lexical
from thalweg.models.weights import ParamSpec

ROWS = 256
"""Tokens per pass. Bounds the [rows, vocab] logits, whatever the text's length."""


class WordWeights:
    """x [N, hidden] -> f32[N, vocab], none below zero."""

    def __init__(self, ctx: Context, spec: Lexical, hidden: int, weights: Mapping[str, Any]) -> None:
        self._dense = Projection(ctx, weights["dense"], spec.act)
        self._norm = ctx.bind(ops.layer_norm, size=hidden, eps=spec.eps)
        self._out = Projection(ctx, weights["out"])
        self._max = ctx.bind(ops.max_pool, size=spec.vocab)
        norm = {name: ParamSpec(weight, ctx.dtype) for name, weight in weights["norm"].items()}
        self.specs: dict[str, Any] = {"dense": self._dense.specs, "norm": norm, "out": self._out.specs}

    def __call__(self, p: Mapping[str, Any], x: Array) -> Array:
        x = self._norm(self._dense(p["dense"], x), p["norm"]["weight"], p["norm"]["bias"])
        return torch.log1p(torch.relu(self._out(p["out"], x).to(torch.float32)))

    def pool(self, p: Mapping[str, Any], x: Array, batch: StepBatch) -> Array:
        """x [T, hidden] of whole sequences -> f32[S, vocab]: the largest of each."""
        found = None
        for at in range(0, x.shape[0], ROWS):
            result = self(p, x[at : at + ROWS])
            best = self._max(result, batch.token_seq[at : at + ROWS], batch.query)
            found = best if found is None else torch.maximum(found, best)
        return found
