"""MoE: a router that selects experts for each token, and an optional shared expert."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from thalweg.hal import ops
from thalweg.hal.op import BoundOp
from thalweg.hal.ops.activation import CLAMP, CUT
from thalweg.hal.ops.pointwise import sigmoid, softplus
from thalweg.hal.step import Array
from thalweg.hal.weights import DENSE, WeightFormat
from thalweg.models.adapter_experts import adapt_experts
from thalweg.models.context import Context
from thalweg.models.flow import Flow
from thalweg.models.layers.deep_router import DeepRouter
from thalweg.models.layers.linear import Product
from thalweg.models.layers.mlp import GatedMLP
from thalweg.models.layers.norm import build_norm
from thalweg.models.layers.ungated import UngatedMLP
from thalweg.models.spec import MLP, MoE
from thalweg.models.weights import ParamSpec, Weight, expert_span, experts_of_rank, table_source
from thalweg.quantization.online import linear_spec


class Experts:
    """x [T, hidden] -> [T, hidden]. Ranks hold a share of every expert's inner values, or some experts whole, and sum."""

    def __init__(self, ctx: Context, spec: MoE, weights: Mapping[str, Any]) -> None:
        self._comm, self._inward, self._top_k, self._logit_scale = ctx.mesh.tensor, spec.inward, spec.top_k, spec.logit_scale
        self._matrices = spec.experts if spec.zero else 0
        inner = spec.inner if spec.placed else ctx.share(spec.inner, "inner values of an expert")
        self._here = experts_of_rank(spec.experts, self._comm.size) if spec.placed else spec.experts
        first, second = (weights[k]["weight"] for k in ("gate_up", "down"))
        self._deep = DeepRouter(ctx, spec.deep_router, spec.experts, weights["router"]) if spec.deep_router else None
        router = weights["router"]["weight"] if self._deep is None else weights["router"]["down"]["weight"]
        hidden = router.sources[0].shape[1]
        facts = ({"biased": True} if spec.biases else {}) | ({} if spec.gated else {"gated": False})
        facts |= {"elsewhere": True} if spec.placed else {}
        self._router = ctx.bind(ops.linear, in_features=hidden, out_features=spec.experts + spec.zero, **linear_spec(DENSE))
        grouped = {"groups": spec.groups, "top_groups": spec.top_groups} if spec.groups > 1 else {}
        if spec.groups > 1 and spec.group_best != 2:
            grouped["group_best"] = spec.group_best
        self._average, self._capacity = spec.average, spec.capacity
        self._route: Callable[..., tuple[Array, Array]]
        self._widens = True
        if spec.scores == "sparsemixer":
            self._route = partial(sparsemixer, jitter=spec.jitter)
        elif spec.scores == "sqrtsoftplus":
            self._route = partial(root_softplus, k=spec.top_k, renormalise=spec.renormalise, scale=spec.scale)
        elif spec.scores == "logits":
            self._route = partial(best_logits, k=spec.top_k, renormalise=spec.renormalise, scale=spec.scale)
        else:
            self._route, self._widens = bind_route(
                ctx, spec, k=spec.top_k, scores=spec.scores, renormalise=spec.renormalise, scale=spec.scale,
                experts=spec.experts + spec.zero, **grouped,
            )  # fmt: skip
        form, down = ctx.format(first), ctx.format(second)
        act = f"{CUT}{spec.cut:g}" if spec.cut else f"{CLAMP}{spec.clamp:g}" if spec.clamp else spec.act
        self._experts, self._biases = bind_experts(
            ctx, spec, experts=self._here, act=act, weight=form, group=form.group, down_weight=down,
            down_group=down.group, in_features=spec.latent or hidden, inner=inner, **facts,
        )  # fmt: skip

        self._each = ctx.tp_invariant
        self._adapter = adapt_experts(ctx, spec, first, second, self._experts)

        def weight_spec(weight: Weight, form: WeightFormat) -> dict[str, ParamSpec]:
            return {"weight": ParamSpec(weight, ctx.dtype, self._experts.pack, form, self._here)}

        self.specs: dict[str, Any] = {
            "router": {"weight": ParamSpec(router, ctx.dtype, self._router.pack)} if self._deep is None else self._deep.specs,
            "gate_up": weight_spec(first, form),
            "down": weight_spec(second, down),
        }
        for key in ("router_bias", "biases", "sum_bias"):
            if key in weights:
                self.specs[key] = {name: ParamSpec(w, ctx.dtype) for name, w in weights[key].items()}
        if spec.placed:
            self.specs["span"] = _span_spec(first, spec.experts, self._comm.size)
        if spec.correction:
            self.specs["correction"] = {"bias": ParamSpec(weights["correction"]["bias"], "float32")}
        if spec.table:
            self.specs["table"] = {"ids": ParamSpec(weights["table"]["ids"], "int64")}
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
        self._norms = {key: build_norm(ctx, norm, weights[key]) for key, norm in spec.norms.items() if norm is not None}
        self.specs |= {key: norm.specs for key, norm in self._norms.items()}
        if spec.expert_scale:
            self.specs["expert_scale"] = {"weight": ParamSpec(weights["expert_scale"]["weight"], ctx.dtype)}
        if spec.shared_gate:
            self._weigh = ctx.bind(ops.linear, in_features=hidden, out_features=1, **linear_spec(DENSE))
            self._gate = ctx.bind(ops.sigmoid_mul, size=hidden)
            self.specs["shared_gate"] = {"weight": ParamSpec(weights["shared_gate"]["weight"], ctx.dtype, self._weigh.pack)}

    def __call__(self, p: Mapping[str, Any], x: Array, flow: Flow) -> Array:
        ids, shares = self._select_experts(p, x, flow)
        same = None
        if self._matrices:  # a zero-computation expert costs an expert's product, with a weight of 0
            real = ids < self._matrices
            same = x * torch.where(real, 0, shares).sum(-1, keepdim=True).to(x.dtype)
            ids, shares = torch.where(real, ids, 0), torch.where(real, shares, 0)
        entered = self._normalize(p, "latent_norm", self._project(p, "enter", self._normalize(p, "entry", x)))
        biases = [p["biases"][name] for name in self._biases]
        matrices = p["gate_up"]["weight"], p["down"]["weight"], *biases
        mine = ids if "span" not in p else self._number_here(p["span"], ids)
        adapted = flow.adapter_rows if self._adapter is not None else None
        if self._adapter is not None and adapted is not None and adapted.extended:
            out = self._comm.all_reduce(
                self._adapter(entered, mine, shares, p["gate_up"]["weight"], p["down"]["weight"], adapted)
            )
        elif self._each or "result_norm" in p:
            out = self._sum_choices(p, entered, mine, shares, *matrices)
        else:
            out = self._comm.all_reduce((self._inwards if self._inward else self._experts)(entered, mine, shares, *matrices))
        out = self._project(p, "leave", self._normalize(p, "sum_norm", out))
        if "biases" in p and "down" not in self._biases:  # once, not once per rank
            each = p["biases"]["down"].view(-1, out.shape[-1])[ids.long()].to(torch.float32)
            out = out + (shares.unsqueeze(-1) * each).sum(1).to(out.dtype)
        if "sum_bias" in p:
            out = out + p["sum_bias"]["bias"]
        out = out if same is None else out + same
        if self._shared is None:
            return out
        more = self._shared(p["shared"], x, flow)
        if "shared_gate" in p:
            more = self._gate(more, self._weigh(x, p["shared_gate"]["weight"], None))
        return (out + more) / 2 if self._average else out + more

    def _normalize(self, p: Mapping[str, Any], key: str, x: Array) -> Array:
        """By a norm that the model may have."""
        return self._norms[key](p[key], x) if key in self._norms else x

    def _project(self, p: Mapping[str, Any], key: str, x: Array) -> Array:
        """Project into or out of the space of the experts."""
        return self._latent[key](x, p[key]["weight"], p[key].get("bias")) if key in self._latent else x

    def _select_experts(self, p: Mapping[str, Any], x: Array, flow: Flow) -> tuple[Array, Array]:
        """Experts i32[T, k] of each token, and their weights f32[T, k]."""
        if self._deep is not None:
            return self._deep(p["router"], x, flow)
        bias = p["router_bias"]["bias"] if "router_bias" in p else None
        logits = self._router(self._normalize(p, "router_norm", x), p["router"]["weight"], bias)
        if self._widens:
            logits = logits.to(torch.float32)
        if self._logit_scale != 1.0:
            logits = logits * self._logit_scale
        correction = (p["correction"]["bias"].reshape(-1),) if "correction" in p else ()
        if "table" in p:
            ids, shares = self._route(logits, ids=p["table"]["ids"][flow.batch.tokens.long()])
        else:
            ids, shares = self._route(logits, *correction)
        if "expert_scale" in p:
            shares = shares * p["expert_scale"]["weight"].to(torch.float32)[ids.long()]
        return ids, limit_tokens(ids, shares, self._capacity) if self._capacity else shares

    def _number_here(self, span: Array, ids: Array) -> Array:
        """ids i32[T, k] of all experts -> their numbers on this rank; experts of other ranks have the number after the last."""
        first, end = span[0, 0], span[0, 1]
        return torch.where((ids >= first) & (ids < end), ids - first, self._here)

    def _sum_choices(self, p: Mapping[str, Any], x: Array, ids: Array, shares: Array, *matrices: Array) -> Array:
        """The result of every choice comes from one rank, and they are added in order of choice."""
        each = self._comm.all_reduce(self._compute_choices(x, ids, shares, *matrices))
        each = self._normalize(p, "result_norm", each.flatten(0, 1)).view(each.shape)
        out = torch.zeros_like(each[:, 0], dtype=torch.float32)
        for i in range(self._top_k):
            y = each[:, i].to(torch.float32)
            out = out + (y if self._inward else y * shares[:, i : i + 1])
        return out.to(x.dtype)

    def _inwards(self, x: Array, ids: Array, shares: Array, *matrices: Array) -> Array:
        first, *others = self._compute_choices(x, ids, shares, *matrices).unbind(1)
        return sum(others, first)  # in the same order in any batch

    def _compute_choices(self, x: Array, ids: Array, shares: Array, *matrices: Array) -> Array:
        """[T, k, hidden]: each token-expert pair is a separate row. Where the model says so, it is multiplied by its weight
        before the expert. Zeros for experts of other ranks."""
        rows = x.unsqueeze(1)
        rows = rows * shares.to(x.dtype).unsqueeze(-1) if self._inward else rows.expand(-1, self._top_k, -1)
        out = self._experts(rows.flatten(0, 1), ids.reshape(-1, 1), torch.ones_like(shares).reshape(-1, 1), *matrices)
        return out.unflatten(0, (-1, self._top_k))


def limit_tokens(ids: Array, shares: Array, capacity: int) -> Array:
    """The weights f32[T, 1] of one sequence's tokens, 0 where `capacity` tokens before have the same expert. ids i32[T, 1]."""
    same = (ids == ids.T).to(torch.int32)
    return torch.where(same.tril(-1).sum(1, keepdim=True) < capacity, shares, 0.0)


def _span_spec(matrix: Weight, experts: int, ranks: int) -> ParamSpec:
    """i32[1, 2]: `expert_span` of the rank. matrix: one that is placed by it, which names the table."""

    def make() -> Array:
        return torch.tensor([expert_span(experts, rank, ranks) for rank in range(ranks)], dtype=torch.int32)

    return ParamSpec(Weight((table_source(f"{matrix.sources[0].name}.span", ranks, 2),), 0), "int32", make=make)


def bind_route(ctx: Context, spec: MoE, **facts: Any) -> tuple[BoundOp, bool]:
    """`ops.route` with these facts, and whether the layer widens the logits first. It does not where a kernel of the device
    reads the model's dtype, and nothing comes between."""
    if ctx.dtype != "float32" and spec.logit_scale == 1.0:
        offered = ctx.binder.offer(ops.route, dtype=ctx.dtype, logits=ctx.dtype, **facts)
        if offered is not None:
            return offered, False
    return ctx.bind(ops.route, **facts), True


def bind_experts(ctx: Context, spec: MoE, **facts: Any) -> tuple[BoundOp, tuple[str, ...]]:
    """`ops.experts` with these facts, and the names of the layer's biases that it adds.

    The bias of down is among them where a kernel of the device adds it. Otherwise the layer adds it after the op. The layer
    also adds it where each of several ranks would add it, where a projection follows the op, and where the op does not know
    the weights of the choices."""
    if not spec.biases:
        return ctx.bind(ops.experts, **facts), ()
    if ctx.mesh.tensor.size == 1 and not (spec.latent or spec.inward or ctx.tp_invariant):
        offered = ctx.binder.offer(ops.experts, dtype=ctx.dtype, down_biased=True, **facts)
        if offered is not None:
            return offered, ("gate_up", "down")
    return ctx.bind(ops.experts, **facts), ("gate_up",)


def sparsemixer(logits: Array, jitter: float) -> tuple[Array, Array]:
    """Two experts of each token and their weights: logits f32[T, E] -> (ids i32[T, 2], weights f32[T, 2]).

    An expert's weight is its share among the experts with a logit near the best: within 2 * jitter, relative to the larger of
    the best and their own size. The second is selected without the first (Liu et al., 2024, arXiv 2409.12136)."""
    ids, weights, left = [], [], logits
    for _ in range(2):
        best, index = left.max(-1, keepdim=True)
        far = (best - logits) / torch.maximum(logits.abs(), best) > 2 * jitter
        share = torch.softmax(torch.where(far, float("-inf"), left), -1)
        ids.append(index)
        weights.append(share.gather(1, index))
        left = left.scatter(1, index, float("-inf"))
    return torch.cat(ids, 1).to(torch.int32), torch.cat(weights, 1)


def root_softplus(
    logits: Array, bias: Array | None = None, ids: Array | None = None, *, k: int, renormalise: bool, scale: float
) -> tuple[Array, Array]:
    """As `ops.route`, with sqrt(softplus(logits)) as scores (DeepSeek-AI 2026, DeepSeek-V4). ids i64[T, k]: the experts, where
    the router does not select them."""
    value = softplus(logits).sqrt()
    if ids is None:
        by = value if bias is None else value + bias
        ids = torch.sort(by, dim=-1, descending=True, stable=True)[1][:, :k]
    weights = value.gather(1, ids)
    if renormalise:
        total = weights[:, :1]
        for i in range(1, k):
            total = total + weights[:, i : i + 1]
        weights = weights / (total + 1e-20)
    return ids.to(torch.int32), weights * scale


def best_logits(logits: Array, bias: Array | None = None, *, k: int, renormalise: bool, scale: float) -> tuple[Array, Array]:
    """As `ops.route`, with the logits themselves as scores. The weights are sigmoids of the selected ones (Kolibri 1)."""
    by = logits if bias is None else logits + bias
    ids = torch.sort(by, dim=-1, descending=True, stable=True)[1][:, :k]
    weights = sigmoid(logits.gather(1, ids))
    if renormalise:
        total = weights[:, :1]
        for i in range(1, k):
            total = total + weights[:, i : i + 1]
        weights = weights / total
    return ids.to(torch.int32), weights * scale
