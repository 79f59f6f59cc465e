"""Mixture of experts: routing, and the experts' output. Knows no shared experts, which are layers like any other, and no
exchange between devices."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from thalweg.hal.op import Sample, op
from thalweg.hal.ops.activation import CLAMP, CUT, SITU, SWIGLU_OAI, activate
from thalweg.hal.ops.activation import glu as through_gates
from thalweg.hal.ops.matmul import FP8, INT8, MXFP4, NF4, linear
from thalweg.hal.ops.pointwise import sigmoid
from thalweg.hal.ops.quantise import dequantise
from thalweg.hal.weights import DENSE, WeightFormat

Q4_K, Q6_K = WeightFormat("int", 4, 32, symmetric=False, mins=True), WeightFormat("int", 8, 16)
"""As layers hold these types of GGUF files, between which Q4_K_M is mixed."""


def _route_sample(name: str, experts: int, biased: bool, **static: object) -> Sample:
    def make(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        logits = rng.normal(size=(7, experts)).astype(np.float32) * 2
        return (logits, rng.normal(size=experts).astype(np.float32) * np.float32(0.3)) if biased else (logits,)

    return Sample(name, make, {"scores": "softmax", "renormalise": True} | static)


@op(
    samples=[
        _route_sample("softmax", 8, False, k=2),
        _route_sample("softmax-as-it-is", 60, False, k=4, renormalise=False),
        _route_sample("sigmoid-groups", 32, True, k=6, scores="sigmoid", scale=2.5, groups=8, top_groups=3),
        _route_sample("softmax-groups", 24, False, k=4, renormalise=False, scale=1.5, groups=6, top_groups=2, group_best=1),
        _route_sample("sigmoid-bias", 24, True, k=8, scores="sigmoid", renormalise=False),
    ],
    tolerances={"float32": 2e-6},
)
def route(
    logits: Tensor, bias: Tensor | None = None, *, k: int, scores: str, renormalise: bool, scale: float = 1.0, groups: int = 1,
    top_groups: int = 1, group_best: int = 2,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The k experts of each token and their weights, best first, of equals the lower id: logits float[T, E], bias
    f32[E] -> (ids i32[T, k], weights f32[T, k]). Facts: logits, where their dtype is not float32. Arithmetic is float32.

    Scores are softmax or sigmoid of the logits. The chosen scores are the weights, divided by their sum (renormalise,
    plus 1e-20 for sigmoids) and times scale. Choosing goes by score + bias. With groups (DeepSeek-V3, 2.1.2) an
    expert counts only in one of the top_groups groups, ranked by the sum of their group_best best, one or two.
    """
    if scores not in ("softmax", "sigmoid"):
        raise ValueError(f"route: scores are softmax or sigmoid, not {scores!r}")
    logits = logits.to(torch.float32)
    value = torch.softmax(logits, -1) if scores == "softmax" else sigmoid(logits)
    by = value if bias is None else value + bias
    if groups > 1:
        parts = by.reshape(by.shape[0], groups, -1)
        best = torch.sort(parts, dim=-1, descending=True)[0][..., :group_best].sum(-1)
        chosen = torch.sort(best, dim=-1, descending=True, stable=True)[1][:, :top_groups]
        keep = (chosen[:, :, None] == torch.arange(groups, device=logits.device)).any(1)
        by = torch.where(keep[..., None], parts, float("-inf")).flatten(1)
    ids = torch.sort(by, dim=-1, descending=True, stable=True)[1][:, :k]
    weights = value.gather(1, ids)
    if renormalise:
        weights = weights / (weights.sum(-1, keepdim=True) + (1e-20 if scores == "sigmoid" else 0.0))
    return ids.to(torch.int32), weights * scale


def _experts_sample(
    tokens: int, act: str = "silu", weight: WeightFormat = DENSE, down: WeightFormat | None = None, biased: bool = False,
    gated: bool = True, down_biased: bool = False, elsewhere: bool = False, hidden: int = 128, ffn: int = 64,
) -> Sample:  # fmt: skip
    """down: None = as weight."""
    experts, k = 6, 2
    held, parts = weight if down is None else down, 1 + gated

    def make(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        ids = np.stack([rng.permutation(experts - 1)[:k] for _ in range(tokens)]).astype(np.int32)  # one expert has no token
        if elsewhere:
            ids[ids < 2] = experts
            ids[-1] = experts
        half = np.float16
        return (
            rng.normal(size=(tokens, hidden)).astype(half), ids, rng.uniform(0.1, 1, (tokens, k)).astype(np.float32),
            (rng.normal(size=(experts * parts * ffn, hidden)) / hidden**0.5).astype(half),
            (rng.normal(size=(experts * hidden, ffn)) / ffn**0.5).astype(half),
            *([rng.normal(size=experts * 2 * ffn).astype(half)] if biased else []),
            *([rng.normal(size=experts * hidden).astype(half)] if down_biased else []),
        )  # fmt: skip

    static = {"weight": weight, "group": weight.group, "down_weight": held, "down_group": held.group}
    named = ("" if weight == DENSE else f"-{weight}") + ("" if held == weight else f"-down-{held}")
    facts: dict[str, bool] = {} if gated else {"gated": False}
    if biased:
        facts["biased"] = True
    if elsewhere:
        facts["elsewhere"] = True
        named += "-elsewhere"
    if down_biased:
        facts["down_biased"] = True
        named += "-down-biased"
    return Sample(f"{tokens}-{act}{named}", make, {"experts": experts, "act": act} | static | facts)


@op(
    samples=[
        _experts_sample(1), _experts_sample(9, "gelu_tanh"), _experts_sample(18),
        *(_experts_sample(5, weight=f) for f in (INT8, WeightFormat("int", 4, 64), FP8, MXFP4, NF4)),
        _experts_sample(5, weight=Q4_K, down=Q6_K), _experts_sample(5, weight=WeightFormat("int", 4, 32), down=INT8),
        _experts_sample(5, weight=INT8, down=DENSE), _experts_sample(9, SWIGLU_OAI, biased=True),
        _experts_sample(5, f"{CUT}0.625"), _experts_sample(9, f"{CLAMP}0.75"),
        _experts_sample(5, f"{SITU}1.5_0.75"), _experts_sample(5, f"{SITU}2_0", INT8),
        _experts_sample(5, SWIGLU_OAI, MXFP4, biased=True, hidden=160, ffn=96),
        _experts_sample(9, SWIGLU_OAI, MXFP4, biased=True, down_biased=True, hidden=160, ffn=96),
        _experts_sample(9, "relu2", gated=False), _experts_sample(5, "relu2", INT8, gated=False),
        _experts_sample(9, elsewhere=True), _experts_sample(5, weight=INT8, elsewhere=True),
    ],
    tolerances={"float32": 1e-5, "bfloat16": 1e-2},
)  # fmt: skip
def experts(
    x: Tensor, ids: Tensor, weights: Tensor, gate_up: Tensor | Mapping[str, Tensor], down: Tensor | Mapping[str, Tensor],
    bias: Tensor | None = None, down_bias: Tensor | None = None, *, experts: int, act: str = "silu", group: int = 0,
    down_group: int = 0, gated: bool = True,
) -> Tensor:  # fmt: skip
    """Gated feed-forward layers, of which each token has k: x [T, H], ids i32[T, k] (distinct in a row), weights
    f32[T, k] -> [T, H], the sum over its experts e, in float32, of weight * (down_e(act(gate_e(x)) * up_e(x)) + down_bias_e).

    gate_up [experts * 2 F, H] holds of each expert its F rows of gate, then those of up. down is [experts * H, F].
    The two weights may differ in format. bias [experts * 2 F] is that of gate_up, down_bias [experts * H] that of down.
    Both have the type of x. Facts at bind: dtype, weight and down_weight (their WeightFormats), of quantised ones group and
    down_group, biased, where there is a bias, down_biased, where there is a down_bias, and gated, where there is no gate:
    gate_up [experts * F, H] then has only rows of up, and an expert is down_e(act(up_e(x))). elsewhere, where ids may be
    `experts`: such a choice is computed elsewhere, and adds nothing. A row may have several.
    """
    first = gate_up if isinstance(gate_up, Tensor) else dequantise(gate_up, group, x.dtype)
    second = down if isinstance(down, Tensor) else dequantise(down, down_group, x.dtype)
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    biases, more = ([None] * experts if b is None else b.chunk(experts) for b in (bias, down_bias))
    for e, (w1, w2, b1, b2) in enumerate(zip(first.chunk(experts), second.chunk(experts), biases, more, strict=True)):
        inner = linear.reference(x, w1, b1)
        y = linear.reference(_through(inner, act) if gated else activate(inner, act), w2).to(torch.float32)
        share = torch.where(ids == e, weights, 0.0).sum(-1, keepdim=True)
        out = out + share * (y if b2 is None else y + b2)
    return out.to(x.dtype)


def _through(inner: Tensor, act: str) -> Tensor:
    gate, up = inner.chunk(2, -1)
    return through_gates(gate, up, act)
