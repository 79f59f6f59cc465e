"""Embeddings of n-grams as inputs of residual streams: see `spec.engram`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from thalweg.errors import CheckpointError
from thalweg.hal import ops
from thalweg.hal.ops.ngrams import split_factors
from thalweg.hal.ops.pointwise import sigmoid
from thalweg.hal.step import Array
from thalweg.hal.weights import DENSE
from thalweg.models import spec as declared
from thalweg.models.context import Context
from thalweg.models.flow import Flow, MixerRef
from thalweg.models.layers.linear import Linear
from thalweg.models.layers.ngram import RowsBefore
from thalweg.models.weights import ParamSpec, Weight
from thalweg.text.merged_tokens import merge_tokens

SMALLEST = 1e-6
"""Of the magnitude whose root is the gate's logit."""


class EngramInput:
    """Streams [T, n, hidden] -> the addition to them."""

    def __init__(self, ctx: Context, spec: declared.EngramInput, weights: Mapping[str, Any], ids: MixerRef) -> None:
        """ids: the place of the rows that it keeps."""
        self._spec, self._before = spec, RowsBefore(ctx, ids, 1)
        self._both = Linear(ctx, weights["both"])
        table = weights["table"]["weight"]
        form = ctx.format(table)
        settings = {} if form == DENSE else {"weight": form, "group": form.group}
        self._look_up = ctx.bind(ops.embed, vocab=spec.total, size=spec.dim, **settings)
        self._norm = ctx.binder.bind(ops.rms_norm, dtype="float32", size=spec.hidden, eps=spec.eps)
        facts: dict[str, Any] = {
            "factors": split_factors(spec.multipliers), "rows": spec.rows, "offsets": spec.offsets,
            "near": tuple(range(1, spec.size)),
        }  # fmt: skip
        self._rows = ctx.bind(ops.hash_ngrams, largest=max(spec.rows))
        result = {k: partial(torch.tensor, [v], dtype=torch.int32) for k, v in facts.items()}
        self.specs: dict[str, Any] = {
            "both": self._both.specs,
            "table": {"weight": ParamSpec(table, ctx.dtype, self._look_up.pack, form)},
            **{k: {"weight": ParamSpec(weights[k]["weight"], ctx.dtype)} for k in ("q", "k")},
            "facts": {
                k: ParamSpec(Weight(()), "int32", make=make) for k,
                make in {**result, "merged": partial(read_ids, spec)}.items()
            },
        }  # fmt: skip

    def __call__(self, p: Mapping[str, Any], x: Array, flow: Flow) -> Array:
        n, hidden = x.shape[1:]
        at = self._hash(p["facts"], flow)
        embedded = self._look_up(at.flatten(), p["table"]["weight"]).view(at.shape[0], -1)
        key, value = self._both(p["both"], embedded, flow).split([n * hidden, hidden], -1)
        key = self._norm(key.to(torch.float32).view(x.shape))
        query = self._norm(x.to(torch.float32)) * (p["q"]["weight"].to(torch.float32) * p["k"]["weight"].to(torch.float32))
        gate = (query * key).sum(-1, keepdim=True) * hidden**-0.5
        gate = torch.where(gate < 0, -1.0, 1.0) * gate.abs().clamp(min=SMALLEST).sqrt()
        return (sigmoid(gate) * value.to(torch.float32)[:, None]).to(x.dtype)

    def _hash(self, facts: Mapping[str, Any], flow: Flow) -> Array:
        """i32[T, heads]: the rows of each token's n-grams in the table."""
        merged = facts["merged"]
        tokens, pad = merged[flow.batch.tokens.long()], merged[self._spec.pad]
        rows, there = self._before(tokens[:, None].to(torch.float32), flow, facts["near"][0])
        ids = torch.cat([tokens[:, None], torch.where(there, rows[..., 0].to(torch.int32), pad)], 1)
        return self._rows(ids, *(facts[k][0] for k in ("factors", "rows", "offsets")))


def read_ids(spec: declared.EngramInput) -> Array:
    """i32[vocabulary]: the merged id of each token. CheckpointError if the tokenizer is not the one of the table."""
    if not spec.tokenizer:
        raise CheckpointError("engram_layer_ids: the layers' hashes are made of tokenizer.json, which the model lacks")
    ids, count = merge_tokens(Path(spec.tokenizer))
    if count != spec.merged or len(ids) > spec.vocab:
        raise CheckpointError(
            f"{spec.tokenizer}: {len(ids)} tokens, {count} without case, accents and spaces; config.json has {spec.vocab} "
            f"and engram_compressed_vocab_size {spec.merged}: use the model's own tokenizer.json"
        )
    result = torch.zeros(spec.vocab, dtype=torch.int32)
    result[: len(ids)] = torch.tensor(ids, dtype=torch.int32)
    return result
