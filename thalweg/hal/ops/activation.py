"""Activations of feed-forward layers, gated (Shazeer 2020) and plain, and gates on the outputs of other layers."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from thalweg.hal.op import Sample, op
from thalweg.hal.ops.pointwise import gelu, sigmoid, silu, tanh

ACTIVATIONS = ("silu", "gelu", "gelu_tanh")
"""Of gated layers."""
SWIGLU_OAI = "swiglu_oai"
"""Of experts, and of MLPs without a kernel."""
OAI_ALPHA, OAI_LIMIT = 1.702, 7.0
CUT = "silu_cut_"
"""Followed by a number: the bound of silu(gate) from above, and of up on both sides (Step 3.5)."""
CLAMP = "silu_clamp_"
"""Followed by a number: the bound of the gate from above, before silu, and of up on both sides (DeepSeek
V4)."""
SITU = "situ_"
"""Followed by two numbers b and c with a line between them: b tanh(gate / b) sigmoid(gate) times c tanh(up / c), or times up
where c is 0 (Kimi K3)."""
UNGATED = (*ACTIVATIONS, "gelu_quick", "relu", "relu2")


def activate(x: Tensor, act: str) -> Tensor:
    """x through the named activation, rounded to x.dtype. ValueError for an unknown name."""
    if act == "silu":
        return silu(x)
    if act == "gelu_tanh":
        return gelu(x, "tanh")
    if act == "gelu":
        return gelu(x)
    if act == "gelu_quick":
        return x * sigmoid(1.702 * x)
    if act == "relu":
        return torch.relu(x)
    if act == "relu2":
        return torch.relu(x).square()
    raise ValueError(f"unknown activation {act!r}; known: {', '.join(UNGATED)}")


def glu(gate: Tensor, up: Tensor, act: str) -> Tensor:
    """act(gate) * up. swiglu_oai, of gpt-oss: both cut at 7, up at -7 as well, then gate * sigmoid(1.702 gate) * (up + 1)."""
    if act.startswith(CUT):
        return cut_silu(gate, up, float(act.removeprefix(CUT)))
    if act.startswith(CLAMP):
        most = float(act.removeprefix(CLAMP))
        return silu(gate.clamp(max=most)) * up.clamp(-most, most)
    if act.startswith(SITU):
        return bound_by_tanh(gate, up, *map(float, act.removeprefix(SITU).split("_")))
    if act != SWIGLU_OAI:
        return activate(gate, act) * up
    gate, up = gate.clamp(max=OAI_LIMIT), up.clamp(-OAI_LIMIT, OAI_LIMIT)
    return (up + 1) * (gate * sigmoid(gate * OAI_ALPHA))


def bound_by_tanh(gate: Tensor, up: Tensor, most: float, most_up: float) -> Tensor:
    """SiTU, in float32 and rounded."""
    wide, other = gate.to(torch.float32), up.to(torch.float32)
    if most_up:
        other = most_up * tanh(other / most_up)
    return (most * tanh(wide / most) * sigmoid(wide) * other).to(gate.dtype)


def cut_silu(gate: Tensor, up: Tensor, most: float) -> Tensor:
    """silu(gate), at most so large, times up, at most so far from zero."""
    return silu(gate).clamp(max=most) * up.clamp(-most, most)


def _gated_sample(act: str) -> Sample:
    return Sample(act, lambda rng: (rng.normal(size=(5, 96)).astype(np.float16),), {"act": act})


def is_gate(act: str) -> bool:
    """Is this an act of `act_and_mul`?"""
    return act in ACTIVATIONS or act.startswith((CLAMP, CUT, SITU))


@op(
    samples=[_gated_sample(a) for a in (*ACTIVATIONS, f"{CLAMP}0.75", f"{CUT}0.5", f"{SITU}1.3_0.6", f"{SITU}2_0")],
    tolerances={"float32": 1e-6, "bfloat16": 1e-2},
)
def act_and_mul(x: Tensor, *, act: str = "silu") -> Tensor:
    """act(first half) * second half: x [..., 2F] -> [..., F]. act: silu, gelu, gelu_tanh, or one with bounds (CLAMP,
    CUT, SITU)."""
    gate, up = x.chunk(2, -1)
    return glu(gate, up, act)


@op(samples=[_gated_sample(a) for a in UNGATED], tolerances={"float32": 1e-6, "bfloat16": 1e-2})
def activation(x: Tensor, *, act: str) -> Tensor:
    """act(x), value by value: x [..., F] -> [..., F]. act: silu, gelu, gelu_tanh, relu, relu2, which is relu squared, or
    gelu_quick, which is x * sigmoid(1.702 x)."""
    return activate(x, act)


def _gate_sample(width: int) -> Sample:
    def make(rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        return rng.normal(size=(5, 96)).astype(np.float16), (2 * rng.normal(size=(5, width))).astype(np.float16)

    return Sample(f"by-{width}", make)


@op(samples=[_gate_sample(96), _gate_sample(1)], tolerances={"float32": 1e-6, "bfloat16": 1e-2})
def sigmoid_mul(x: Tensor, gate: Tensor) -> Tensor:
    """x * sigmoid(gate), the sigmoid in float32 and rounded: x [..., F], gate [..., F] or [..., 1] -> [..., F]."""
    return x * sigmoid(gate.to(torch.float32)).to(x.dtype)
