"""Multi-head latent attention (DeepSeek-AI 2024, https://arxiv.org/abs/2405.04434). The up-projection of keys is applied to q,
and that of values to what attention gives. So attention meets the latents themselves, and no head's keys are ever made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from thalweg.hal import ops
from thalweg.hal.step import Array
from thalweg.models import spec as declared
from thalweg.models.context import Context
from thalweg.models.flow import Flow, Place
from thalweg.models.layers.attention import chosen, grown
from thalweg.models.layers.linear import Linear, RowLinear
from thalweg.models.layers.norm import RMSNorm
from thalweg.models.weights import ParamSpec


class LatentAttention:
    """x [T, hidden] -> [T, hidden]. Heads are divided among ranks, latents are not."""

    def __init__(self, ctx: Context, spec: declared.LatentAttention, weights: Mapping[str, Any], place: Place) -> None:
        self._place, self._grows, self._nope, self._rotary = place, spec.grows, spec.nope_dim, spec.rope_dim
        self._heads = ctx.share(spec.heads, "attention heads")
        self._parts = (spec.q_latent, spec.latent, spec.rope_dim)
        self._down, self._q, self._out = (make(ctx, weights[k]) for make, k in (
            (Linear, "down"), (Linear, "q"), (RowLinear, "out"),
        ))  # fmt: skip
        self._kv_norm = _norm(ctx, spec.latent, spec.eps, weights["kv_norm"])
        self._q_norm = _norm(ctx, spec.q_latent, spec.eps, weights["q_norm"]) if spec.q_latent else None
        self._rope = ctx.bind(
            ops.rope, rotary_dim=spec.rope_dim, interleaved=spec.rope.interleaved, heads=self._heads, kv_heads=1,
            head_dim=spec.rope_dim,
        )  # fmt: skip
        up = {"heads": self._heads}
        self._absorb = ctx.bind(ops.head_linear, turned=True, in_features=spec.nope_dim, out_features=spec.latent, **up)
        self._expand = ctx.bind(ops.head_linear, turned=False, in_features=spec.latent, out_features=spec.value_dim, **up)
        self.spec = spec.keeps(ctx.dtype, ctx.kv_dtype, ctx.max_len, ctx.comm.size)
        self.backend = chosen(ctx, self.spec)
        self.layout = self.backend.layout(self.spec, ctx.block_tokens)
        self.specs: dict[str, Any] = {
            "down": self._down.specs,
            "q": self._q.specs,
            "kv_norm": self._kv_norm.specs,
            "k_up": {"weight": ParamSpec(weights["k_up"]["weight"], ctx.dtype, self._absorb.pack, matrices=self._heads)},
            "v_up": {"weight": ParamSpec(weights["v_up"]["weight"], ctx.dtype, self._expand.pack, matrices=self._heads)},
            "out": self._out.specs,
        }
        if self._q_norm is not None:
            self.specs["q_norm"] = self._q_norm.specs

    def __call__(self, p: Mapping[str, Any], x: Array, flow: Flow) -> Array:
        at = self._place
        # As heads, of which there is one: kernels take those out of wider rows.
        latent_q, latent, key = self._down(p["down"], x).unsqueeze(1).split(self._parts, dim=-1)
        q = self._q(p["q"], x if self._q_norm is None else self._q_norm(p["q_norm"], latent_q).squeeze(1))
        q = q.unflatten(-1, (self._heads, -1))
        if self._grows is not None:
            q = grown(q, flow.batch.positions, *self._grows)
        still, turning = q.split((self._nope, self._rotary), dim=-1)
        turned, key = self._rope(turning, key, flow.batch.positions, flow.tables[at.table])
        query = torch.cat((self._absorb(still, p["k_up"]["weight"]), turned), -1)
        held = torch.cat((self._kv_norm(p["kv_norm"], latent), key), -1)
        out, flow.caches[at.layer] = self.backend.attend(
            query, held, held, flow.caches[at.layer], flow.batch, at.group, self.spec
        )
        return self._out(p["out"], self._expand(out, p["v_up"]["weight"]).flatten(-2))


def _norm(ctx: Context, size: int, eps: float, weights: Mapping[str, Any]) -> RMSNorm:
    return RMSNorm(ctx, declared.Norm("", size, eps), weights)
