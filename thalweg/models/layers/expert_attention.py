"""Mixture of attention heads: a router selects the experts with a token's queries and output. Not divided among ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from thalweg.hal import ops
from thalweg.hal.step import Array
from thalweg.hal.weights import DENSE
from thalweg.models import spec as declared
from thalweg.models.context import Context
from thalweg.models.flow import Flow, MixerRef
from thalweg.models.layers.attention import select_backend
from thalweg.models.layers.linear import Linear, Product
from thalweg.models.weights import ParamSpec
from thalweg.quantization.online import linear_spec


class ExpertAttention:
    """x [T, hidden] -> [T, hidden]."""

    def __init__(self, ctx: Context, spec: declared.ExpertAttention, weights: Mapping[str, Any], place: MixerRef) -> None:
        self._place, self._experts, self._kv_heads, self._inner = place, spec.experts, spec.kv_heads, spec.inner
        hidden = weights["router"]["weight"].sources[0].shape[1]
        self._router = ctx.bind(ops.linear, in_features=hidden, out_features=spec.experts, **linear_spec(DENSE))
        self._route = ctx.bind(ops.route, experts=spec.experts, k=spec.top_k, scores="softmax", renormalise=True)
        self._q, self._kv = Linear(ctx, weights["q"]), Linear(ctx, weights["kv"])
        self._out = [Product(ctx, weights["out"][e]) for e in range(spec.experts)]
        self.spec = spec.keeps(ctx.dtype, ctx.kv_dtype, ctx.max_len, ctx.mesh.tensor.size)
        self.backend = select_backend(ctx, self.spec)
        self.layout: Any = self.backend.layout(self.spec, ctx.block_tokens)
        self._rope = ctx.bind(
            ops.rope, rotary_dim=spec.rope.dim, interleaved=spec.rope.interleaved, heads=self.spec.heads,
            kv_heads=spec.kv_heads, head_dim=spec.head_dim,
        )  # fmt: skip
        self.specs: dict[str, Any] = {
            "router": {"weight": ParamSpec(weights["router"]["weight"], ctx.dtype, self._router.pack)},
            "q": self._q.specs, "kv": self._kv.specs, "out": {e: product.spec for e, product in enumerate(self._out)},
            "bias": ParamSpec(weights["bias"], ctx.dtype),
        }  # fmt: skip

    def __call__(self, p: Mapping[str, Any], x: Array, flow: Flow) -> Array:
        at, n = self._place, self._inner
        ids, shares = self._route(self._router(x, p["router"]["weight"], None).to(torch.float32))
        every = self._q(p["q"], x, flow).unflatten(-1, (self._experts, n))
        q = every.gather(1, ids.long().unsqueeze(-1).expand(-1, -1, n))
        q = q.unflatten(-1, (self._kv_heads, -1)).transpose(1, 2).flatten(1, 2)  # heads that share one of k are neighbours
        k, v = (part.unflatten(-1, (self._kv_heads, -1)) for part in self._kv(p["kv"], x, flow).chunk(2, -1))
        rows = flow.batch.positions if flow.rows is None else flow.rows
        q, k = self._rope(q.contiguous(), k.contiguous(), rows, flow.tables[at.table])
        out, flow.caches[at.layer] = self.backend.attend(
            q, k, v.contiguous(), flow.caches[at.layer], flow.batch, at.group, self.spec
        )
        out = out.unflatten(1, (self._kv_heads, -1)).transpose(1, 2).flatten(2)  # [T, top_k, n]
        out, total = out * shares.unsqueeze(-1).to(out.dtype), p["bias"]
        for e, product in enumerate(self._out):
            chosen = (out * (ids == e).unsqueeze(-1).to(out.dtype)).sum(1)
            total = total + product(chosen, p["out"][e], None)
        return total
