"""The experts function that replaces the loops of transformers' modules, which have shapes that depend on values.

Where `ops.experts` can compute a module's experts, and the device has a kernel for it, the op is called. Other experts are
sorted, and all products with one expert are computed at once, as in transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.integrations import moe

NAME = "thalweg"
OWN = "thalweg_experts"
"""Attribute of a module with experts computed by `ops.experts`."""
PARTS = ("gate_up_proj", "down_proj")
_ACTS = {"silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh"}


def run(self: nn.Module, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """As transformers calls it: x [T, H], the experts of each token and their shares [T, k] -> [T, H]."""
    own: Callable[..., Tensor] | None = getattr(self, OWN, None)
    if own is not None:
        return own(hidden_states, top_k_index.to(torch.int32), top_k_weights.to(torch.float32))
    if hidden_states.is_meta:
        return torch.empty_like(hidden_states)
    out: Tensor = moe.grouped_mm_experts_forward(self, hidden_states, top_k_index, top_k_weights)
    return out


def exchange(model: Any) -> None:
    """Let a model's experts be computed here, where its class allows that."""
    if NAME not in moe.ALL_EXPERTS_FUNCTIONS.valid_keys():
        moe.ALL_EXPERTS_FUNCTIONS.register(NAME, run)
    if model._can_set_experts_implementation():
        model.config._experts_implementation = NAME


def expert_activations(model: nn.Module) -> Mapping[str, str]:
    """Name of each module with experts that `ops.experts` can compute -> its activation."""
    found = {name: _act(m) for name, m in model.named_modules() if hasattr(m, "is_concatenated")}
    return {name: act for name, act in found.items() if act}


def _act(module: Any) -> str:
    """As `ops.experts` names it; "": its experts are something else."""
    plain = getattr(moe, "_default_apply_gate", None)
    odd = module.is_transposed or module.has_bias or not module.has_gate or not module.is_concatenated
    if odd or getattr(module, "has_post_expert_norm", False) or getattr(type(module), "_apply_gate", None) is not plain:
        return ""
    if not all(isinstance(p := getattr(module, part, None), nn.Parameter) and p.dim() == 3 for part in PARTS):
        return ""
    kind = type(getattr(module, "act_fn", None))
    return next((ours for name, ours in _ACTS.items() if type(ACT2FN[name]) is kind), "")
