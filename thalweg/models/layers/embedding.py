"""Token ids to vectors, and vectors to logits. With tied weights both declare the same checkpoint tensor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from thalweg.hal import ops
from thalweg.hal.step import Array
from thalweg.hal.weights import DENSE
from thalweg.models.context import Context
from thalweg.models.spec import ParamSpec, Source
from thalweg.quantization.online import facts


class Embedding:
    """tokens i32[T] -> [T, hidden]. Divided by hidden size, not by vocabulary: a rank needs not know which it is. tied: it is
    the output matrix too."""

    def __init__(self, ctx: Context, name: str, vocab: int, hidden: int, tied: bool) -> None:
        self._comm = ctx.comm
        here = ctx.share(hidden, "hidden units")
        one = tied and ctx.comm.size == 1 and ctx.formats.head == DENSE  # the two need the same of it
        self._op = ctx.bind(ops.embed, vocab=vocab, size=here, **({"tied": True} if one else {}))
        source = Source(f"{name}.weight", (vocab, hidden))
        self.specs = {"weight": ParamSpec((source,), ctx.dtype, 1, self._op.pack, self._op.pack_parts)}

    def __call__(self, p: Mapping[str, Any], tokens: Array) -> Array:
        return self._comm.all_gather(self._op(tokens, p["weight"]), -1)


class LMHead:
    """x [N, hidden] -> logits f32[N, vocab], whole on every rank. tied: `name` is the embedding's."""

    def __init__(self, ctx: Context, name: str, vocab: int, hidden: int) -> None:
        self._comm = ctx.comm
        here = ctx.share(vocab, "tokens of the vocabulary")
        form = ctx.formats.head
        self._op = ctx.bind(ops.linear, in_features=hidden, out_features=here, **facts(form))
        source = Source(f"{name}.weight", (vocab, hidden))
        self.specs = {"weight": ParamSpec((source,), ctx.dtype, 0, self._op.pack, self._op.pack_parts, form)}

    def __call__(self, p: Mapping[str, Any], x: Array) -> Array:
        return self._comm.all_gather(self._op(x, p["weight"], None), -1).to(torch.float32)

    @property
    def chooses(self) -> bool:
        """Is there `largest`?"""
        return self._op.largest is not None and self._comm.size == 1

    def largest(self, p: Mapping[str, Any], x: Array) -> tuple[Array, Array]:
        """The likeliest tokens i32[N] and their logits f32[N], without the others being written down."""
        assert self._op.largest is not None
        found: tuple[Array, Array] = self._op.largest(x, p["weight"], None)
        return found
