"""MiMo (7B): Qwen 2, with a module for multi-token prediction that only the drafter `mtp` runs."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, integer
from thalweg.models.families.common import attention, eps, mlp, pre_norms
from thalweg.models.families.qwen2 import qwen2
from thalweg.models.spec import Layer, ModelSpec, MTPSpec, Names, Norm

MODULES = "model.mtp_layers."


def mimo(config: Config) -> ModelSpec:
    spec = replace(qwen2(config), names=Names(skip=(MODULES,)))
    if not integer(config, "num_nextn_predict_layers", low=0, default=0):
        return spec
    return replace(spec, mtp=_module(config, spec.vocab, spec.hidden))


def _module(config: Config, vocab: int, hidden: int) -> MTPSpec:
    """The first module. Published checkpoints have one."""
    e = eps(config)
    return MTPSpec(
        vocab=vocab, hidden=hidden, layers=(Layer(attention(config, bias=True), mlp(config), pre_norms(config)),),
        norm=Norm("final_layernorm", hidden, e), token_norm=Norm("token_layernorm", hidden, e),
        hidden_norm=Norm("hidden_layernorm", hidden, e), proj="input_proj", hidden_first=True, root=f"{MODULES}0.",
    )  # fmt: skip
