"""Mixtures of experts: a router, of all experts those that it chooses for a token, and one that every token goes to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from thalweg.hal import ops
from thalweg.hal.step import Array
from thalweg.hal.weights import DENSE, WeightFormat
from thalweg.models.context import Context
from thalweg.models.flow import Flow
from thalweg.models.layers.linear import Product
from thalweg.models.layers.mlp import GatedMLP
from thalweg.models.layers.ungated import UngatedMLP
from thalweg.models.spec import MLP, MoE
from thalweg.models.weights import ParamSpec, Weight
from thalweg.quantization.online import linear_spec


class Experts:
    """x [T, hidden] -> [T, hidden]. Ranks hold a share of every expert's inner values, and sum."""

    def __init__(self, ctx: Context, spec: MoE, weights: Mapping[str, Any]) -> None:
        self._comm = ctx.comm
        inner = ctx.share(spec.inner, "inner values of an expert")
        router, first, second = (weights[k]["weight"] for k in ("router", "gate_up", "down"))
        hidden = router.sources[0].shape[1]
        facts = ({"biased": True} if spec.biases else {}) | ({} if spec.gated else {"gated": False})
        self._router = ctx.bind(ops.linear, in_features=hidden, out_features=spec.experts, **linear_spec(DENSE))
        grouped = {"groups": spec.groups, "top_groups": spec.top_groups} if spec.groups > 1 else {}
        if spec.groups > 1 and spec.group_best != 2:
            grouped["group_best"] = spec.group_best
        self._average = spec.average
        self._route: Callable[..., tuple[Array, Array]]
        if spec.scores == "sparsemixer":
            self._route = partial(sparsemixer, jitter=spec.jitter)
        else:
            self._route = ctx.bind(
                ops.route, k=spec.top_k, scores=spec.scores, renormalise=spec.renormalise, scale=spec.scale,
                experts=spec.experts, **grouped,
            )  # fmt: skip
        form, down = ctx.format(first), ctx.format(second)
        self._experts = ctx.bind(
            ops.experts, experts=spec.experts, act=spec.act, weight=form, group=form.group, down_weight=down,
            down_group=down.group, in_features=spec.latent or hidden, inner=inner, **facts,
        )  # fmt: skip

        def packed(weight: Weight, form: WeightFormat) -> dict[str, ParamSpec]:
            return {"weight": ParamSpec(weight, ctx.dtype, self._experts.pack, form, spec.experts)}

        self.specs: dict[str, Any] = {
            "router": {"weight": ParamSpec(router, ctx.dtype, self._router.pack)},
            "gate_up": packed(first, form),
            "down": packed(second, down),
        }
        for key in ("router_bias", "biases"):
            if key in weights:
                self.specs[key] = {name: ParamSpec(w, ctx.dtype) for name, w in weights[key].items()}
        if spec.correction:
            self.specs["correction"] = {"bias": ParamSpec(weights["correction"]["bias"], "float32")}
        self._latent = {k: Product(ctx, weights[k]["weight"]) for k in ("enter", "leave") if k in weights}
        for key, product in self._latent.items():
            self.specs[key] = {"weight": product.spec}
            if "bias" in weights[key]:
                self.specs[key]["bias"] = ParamSpec(weights[key]["bias"], ctx.dtype)
        self._shared: GatedMLP | UngatedMLP | None = None
        if spec.shared is not None:
            kind: Any = GatedMLP if isinstance(spec.shared, MLP) else UngatedMLP
            self._shared = kind(ctx, spec.shared, weights["shared"])
            self.specs["shared"] = self._shared.specs
        if spec.shared_gate:
            self._weigh = ctx.bind(ops.linear, in_features=hidden, out_features=1, **linear_spec(DENSE))
            self._gate = ctx.bind(ops.sigmoid_mul, size=hidden)
            self.specs["shared_gate"] = {"weight": ParamSpec(weights["shared_gate"]["weight"], ctx.dtype, self._weigh.pack)}

    def __call__(self, p: Mapping[str, Any], x: Array, flow: Flow) -> Array:
        bias = p["router_bias"]["bias"] if "router_bias" in p else None
        logits = self._router(x, p["router"]["weight"], bias).to(torch.float32)
        correction = (p["correction"]["bias"].reshape(-1),) if "correction" in p else ()
        ids, shares = self._route(logits, *correction)
        biases = (p["biases"]["gate_up"],) if "biases" in p else ()
        entered = self._projected(p, "enter", x)
        out = self._comm.all_reduce(self._experts(entered, ids, shares, p["gate_up"]["weight"], p["down"]["weight"], *biases))
        out = self._projected(p, "leave", out)
        if "biases" in p:  # once, not once per rank
            each = p["biases"]["down"].view(-1, out.shape[-1])[ids.long()].to(torch.float32)
            out = out + (shares.unsqueeze(-1) * each).sum(1).to(out.dtype)
        if self._shared is None:
            return out
        more = self._shared(p["shared"], x, flow)
        if "shared_gate" in p:
            more = self._gate(more, self._weigh(x, p["shared_gate"]["weight"], None))
        return (out + more) / 2 if self._average else out + more

    def _projected(self, p: Mapping[str, Any], key: str, x: Array) -> Array:
        """Into the space that the experts see, or out of it."""
        return self._latent[key](x, p[key]["weight"], p[key].get("bias")) if key in self._latent else x


def sparsemixer(logits: Array, jitter: float) -> tuple[Array, Array]:
    """Two experts of each token and their weights: logits f32[T, E] -> (ids i32[T, 2], weights f32[T, 2]).

    An expert's weight is its share among those whose logit is near the best: within 2 * jitter, of the larger of that and
    their own size. The second is found where the first no longer counts (Liu et al., 2024, arXiv 2409.12136)."""
    ids, weights, left = [], [], logits
    for _ in range(2):
        best, index = left.max(-1, keepdim=True)
        far = (best - logits) / torch.maximum(logits.abs(), best) > 2 * jitter
        share = torch.softmax(torch.where(far, float("-inf"), left), -1)
        ids.append(index)
        weights.append(share.gather(1, index))
        left = left.scatter(1, index, float("-inf"))
    return torch.cat(ids, 1).to(torch.int32), torch.cat(weights, 1)
