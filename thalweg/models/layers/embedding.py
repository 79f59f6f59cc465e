"""Token ids to vectors, and vectors to logits. With tied weights both declare the same checkpoint tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from thalweg.errors import ConfigError
from thalweg.hal import ops
from thalweg.hal.parts.axes import Axes
from thalweg.hal.step import Array, StepBatch
from thalweg.hal.weights import DENSE
from thalweg.models.adapters import HEAD, AdapterRows, LinearAdapter, TableAdapter
from thalweg.models.context import Context
from thalweg.models.spec import LearnedEmbedding, ModelSpec
from thalweg.models.weights import ParamSpec
from thalweg.quantization.online import linear_spec


class Embedding:
    """tokens i32[T] -> [T, hidden]. Divided by hidden size, not by vocabulary: a rank needs not know which it is."""

    def __init__(self, ctx: Context, spec: ModelSpec, weights: Mapping[str, Any]) -> None:
        self._comm = ctx.mesh.tensor
        here = ctx.share(spec.embed_width, "values of an embedding")
        table = weights["weight"]
        form = ctx.format(table)
        # A tied table has one packing for both uses only if their formats are equal.
        same = form == ctx.formats.of("tied", table.sources[0].name)
        one = {"tied": True} if spec.tied and spec.span is None and ctx.mesh.tensor.size == 1 and same else {}
        stored_entry = {} if form == DENSE else {"weight": form, "group": form.group}
        self._op = ctx.bind(ops.embed, vocab=spec.vocab, size=here, **one, **stored_entry)
        # Rounded to the model's dtype before it multiplies, as the published implementations do.
        self._scale = float(torch.tensor(spec.embed_scale, dtype=getattr(torch, ctx.dtype)))
        adapted = ctx.adapters is not None and not spec.prompt_ids and ctx.adapters.includes(table)
        self._adapter = TableAdapter(ctx, table) if adapted else None
        self.specs = {"weight": ParamSpec(table, ctx.dtype, self._op.pack, form)}

    def __call__(self, p: Mapping[str, Any], tokens: Array, rows: AdapterRows | None = None) -> Array:
        """rows: the adapters of the tokens. None: they have none."""
        x = self._comm.all_gather(self._op(tokens, p["weight"]), -1)
        if self._adapter is not None:
            x = self._adapter(x, tokens, rows)
        return x if self._scale == 1.0 else x * self._scale


class AddedEmbedding:
    """A learned table with rows that are added to embeddings: by positions, or by token types."""

    def __init__(self, ctx: Context, spec: LearnedEmbedding, hidden: int, weights: Mapping[str, Any], longest: int = 0) -> None:
        """longest: tokens of the longest sequence; 0 = the model's context."""
        if spec.by == "position" and spec.positions < (longest or ctx.max_len):
            raise ConfigError(f"max_model_len: the model has {spec.positions} learned positions, not {ctx.max_len}: lower it")
        self._by, self._first, self._last = spec.by, spec.first, spec.rows - 1
        self._op = ctx.bind(ops.embed, vocab=spec.rows, size=hidden)
        make = partial(sine_table, spec.rows, hidden, spec.sines, getattr(torch, ctx.dtype)) if spec.sines else None
        self.specs = {"weight": ParamSpec(weights["weight"], ctx.dtype, self._op.pack, make=make)}

    def __call__(self, p: Mapping[str, Any], batch: StepBatch, types: Array | None) -> Array:
        """[T, hidden]. types: i32[T]; None: all tokens are of type 0."""
        if self._by == "position":
            axes, at = batch.get(Axes), batch.positions + self._first
            at = at if axes is None else at + axes.shift[:, 0]  # of text behind an image that has no positions
            # Padding of a step counts its positions on and on.
            return self._op(at.clamp(max=self._last), p["weight"])
        same = types is None or self._by == "first"
        return self._op(torch.zeros_like(batch.positions) if same else types, p["weight"])


def sine_table(rows: int, hidden: int, steps: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """[rows, hidden]: sines in the first half of the columns, cosines in the other (Vaswani et al. 2017,
    https://arxiv.org/abs/1706.03762). Column i of both turns by 10000 ** (-i / steps) per row."""
    turns = torch.pow(torch.tensor(10_000.0, dtype=torch.float64), -torch.arange(hidden // 2, dtype=torch.float64) / steps)
    angle = torch.arange(rows, dtype=torch.float64)[:, None] * turns
    return torch.cat([angle.sin(), angle.cos()], 1).to(dtype)


NEVER = -1e9
"""The logit of tokens without a row in the output matrix. Finite, so that their log-probabilities are."""


class LMHead:
    """x [N, hidden] -> logits f32[N, vocab], whole on every rank."""

    def __init__(self, ctx: Context, spec: ModelSpec, weights: Mapping[str, Any]) -> None:
        self._comm = ctx.mesh.tensor
        self._scale, self._cap = spec.logit_scale, spec.logit_softcap
        rows = spec.head_rows or spec.vocab
        here, self._absent = ctx.share(rows, "tokens of the vocabulary"), spec.vocab - rows
        form = ctx.format(weights["weight"])
        stored_entry = {"in_features": spec.hidden, "out_features": here, **linear_spec(form)}
        self._op = ctx.bind(ops.linear, **stored_entry)
        # A positive scale and a cap keep the order, but change the reported logits.
        unchanged = spec.logit_scale == 1.0 and not spec.logit_softcap and not spec.banned_tokens and "bias" not in weights
        plain = ctx.mesh.tensor.size == 1 and unchanged
        self._argmax = ctx.binder.offer(ops.linear_argmax, self._op, dtype=ctx.dtype, **stored_entry) if plain else None
        weight, stored = weights["weight"], f"{spec.head}.weight"
        adapted = ctx.adapters is not None and not spec.head_normed and ctx.adapters.includes(weight, stored)
        self._adapter = LinearAdapter(ctx, weight, weights.get("bias"), name=HEAD, stored=stored) if adapted else None
        self.specs = {"weight": ParamSpec(weights["weight"], ctx.dtype, self._op.pack, form)}
        if "bias" in weights:
            self.specs["bias"] = ParamSpec(weights["bias"], ctx.dtype)
        if spec.banned_tokens:
            self.specs["banned"] = ParamSpec(
                weights["banned"], "float32", make=partial(_banned_logits, spec.vocab, spec.banned_tokens)
            )

    def __call__(self, p: Mapping[str, Any], x: Array, rows: AdapterRows | None = None) -> Array:
        """rows: the adapters of x, where the step's may change this matrix. None: they do not."""
        result = self._op(x, p["weight"], p.get("bias"))
        if rows is not None and self._adapter is not None:
            result = self._adapter.add(result, x, rows)
        logits = self._comm.all_gather(result, -1).to(torch.float32)
        if self._scale != 1.0:
            logits = logits * self._scale
        logits = torch.tanh(logits / self._cap) * self._cap if self._cap else logits
        if "banned" in p:
            logits = torch.minimum(logits, p["banned"])
        return functional.pad(logits, (0, self._absent), value=NEVER) if self._absent else logits

    @property
    def has_argmax(self) -> bool:
        return self._argmax is not None

    def argmax(self, p: Mapping[str, Any], x: Array) -> tuple[Array, Array]:
        """Tokens i32[N] of the largest logits, and these f32[N], without the others being written down."""
        assert self._argmax is not None
        found: tuple[Array, Array] = self._argmax(x, p["weight"], None)
        return found


def _banned_logits(vocab: int, banned: Sequence[int]) -> Array:
    """The largest logit of each token, f32[vocab]: infinity, and the lowest float32 of banned tokens."""
    most = torch.full((vocab,), torch.inf, dtype=torch.float32)
    most[torch.tensor(banned)] = torch.finfo(torch.float32).min
    return most
