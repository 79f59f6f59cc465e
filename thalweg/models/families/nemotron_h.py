"""Nemotron-H and Nemotron 3: one part per layer, either Mamba-2, NoPE attention, an ungated squared-ReLU MLP or a mixture of
such experts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf
from typing import Any

from thalweg.checkpoint.config import Config, flag, integer, real, text
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models.families.common import UNGATED, act, attention, decoder, hidden_size, layer_count, ungated_mlp
from thalweg.models.families.mamba import SILU, taps
from thalweg.models.families.mamba2 import shared_by
from thalweg.models.families.nextn import MODULE
from thalweg.models.spec import FFN, Layer, Mamba2, Mixer, ModelSpec, MoE, MTPSpec, Names, Norm, Norms, UngatedMLP

LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
"""Of `hybrid_override_pattern`."""
KINDS = {"linear_attention": "mamba", "full_attention": "attention", **{kind: kind for kind in LETTERS.values()}}
"""Of `layers_block_type`."""


def nemotron_h(config: Config) -> ModelSpec:
    hidden, e = hidden_size(config), real(config, "layer_norm_epsilon", default=1e-5)
    kinds, before = _kinds(config), Norm("norm", hidden, e)
    mixers = {kind: Layer(make(config, e), None, Norms(mixer=before)) for kind, make in _MIXERS.items() if kind in kinds}
    ffns = {kind: Layer(None, make(config), Norms(ffn=before)) for kind, make in _FFNS.items() if kind in kinds}
    spec = decoder(
        config, [(mixers | ffns)[kind] for kind in kinds], norm=Norm("norm_f", hidden, e), root="backbone.", embed="embeddings",
        names=Names(replace=(("model.", "backbone."),), skip=(MODULE,)),
    )  # fmt: skip
    if not integer(config, "num_nextn_predict_layers", low=0, default=0):
        return spec
    return replace(spec, mtp=_module(config, spec.vocab, hidden, e))


def _module(config: Config, vocab: int, hidden: int, e: float) -> MTPSpec:
    """The first module: layers of one part, of which the first has the norms and the projection of the module's input, and the
    last the norm of its output."""
    kinds = _read_kinds(config, "mtp_hybrid_override_pattern", "mtp_layers_block_type") or ["attention", "moe"]
    if "mamba" in kinds:
        raise UnsupportedModelError("config.json: mtp_hybrid_override_pattern: recurrent layers in a module are not supported")
    before = Norm("norm", hidden, e)
    layers = tuple(
        Layer(_MIXERS[kind](config, e), None, Norms(mixer=before)) if kind in _MIXERS
        else Layer(None, _FFNS[kind](config), Norms(ffn=before)) for kind in kinds
    )  # fmt: skip
    return MTPSpec(
        vocab=vocab, hidden=hidden, layers=layers, norm=Norm(f"layers.{len(kinds) - 1}.final_layernorm", hidden, e),
        token_norm=Norm("layers.0.enorm", hidden, e), hidden_norm=Norm("layers.0.hnorm", hidden, e), proj="layers.0.eh_proj",
        hidden_first=False, root=MODULE, layer="layers.{}.",
    )  # fmt: skip


def _kinds(config: Config) -> list[str]:
    named, layers = _read_kinds(config, "hybrid_override_pattern", "layers_block_type"), layer_count(config)
    if len(named) != layers:
        raise CheckpointError(f"config.json: hybrid_override_pattern: must name {layers} layers, not {len(named)}")
    return named


def _read_kinds(config: Config, letters: str, listed: str) -> list[str]:
    """The kinds of layers by one of two keys: a pattern of letters, or a list."""
    if isinstance(config.get(listed), list):
        known, section = KINDS, list(config[listed])
    else:
        known, section = LETTERS, list(text(config, letters, "")) if config.get(letters) is not None else []
    odd = sorted({str(kind) for kind in section} - set(known))
    if odd:
        raise UnsupportedModelError(f"config.json: layers: unknown {odd[0]!r:.80}; supported: {', '.join(known)}")
    return [known[kind] for kind in section]


def _mamba(config: Config, e: float) -> Mamba2:
    heads, bias = integer(config, "mamba_num_heads", high=1 << 16, default=128), flag(config, "use_bias", False)
    return Mamba2(
        heads=heads, head_dim=integer(config, "mamba_head_dim", high=1 << 16, default=64),
        groups=shared_by(config, "n_groups", heads, 8), state=integer(config, "ssm_state_size", high=1 << 16, default=128),
        kernel=taps(config, "conv_kernel"), eps=e, act=act(config, "mamba_hidden_act", known=SILU), bias=bias, out_bias=bias,
        conv_bias=flag(config, "use_conv_bias", True), limits=(real(config, "time_step_min", 0, 1e30, default=1e-3), inf),
    )  # fmt: skip


def _attention(config: Config, e: float) -> Mixer:
    head_dim = integer(config, "head_dim", default=128)
    return replace(attention(config, head_dim=head_dim), rope=None, name="mixer")


def _mlp(config: Config, **more: Any) -> UngatedMLP:
    section = {"act": _act(config), "bias": flag(config, "mlp_bias", False), "up": "up_proj", "down": "down_proj"}
    return ungated_mlp(config, **({"name": "mixer"} | section | more))


def _act(config: Config) -> str:
    return act(config, "mlp_hidden_act", default="relu2", known=UNGATED)


def _moe(config: Config) -> MoE:
    experts = integer(config, "n_routed_experts", default=8)
    inner = integer(config, "moe_shared_expert_intermediate_size", high=1 << 24, default=7688)
    return MoE(
        experts=experts, top_k=integer(config, "num_experts_per_tok", high=experts, default=min(2, experts)),
        inner=integer(config, "moe_intermediate_size", default=7688), act=_act(config), gated=False,
        scores="sigmoid", renormalise=flag(config, "norm_topk_prob", True),
        scale=real(config, "routed_scaling_factor", default=1.0), correction="gate.e_score_correction_bias",
        groups=integer(config, "n_group", high=experts, default=1), top_groups=integer(config, "topk_group", default=1),
        latent=integer(config, "moe_latent_size", low=0, high=1 << 20, default=0), latent_bias=flag(config, "mlp_bias", False),
        shared=_mlp(config, inner=inner, name="shared_experts"), name="mixer",
    )  # fmt: skip


_MIXERS: Mapping[str, Callable[[Config, float], Mixer]] = {"mamba": _mamba, "attention": _attention}
_FFNS: Mapping[str, Callable[[Config], FFN]] = {"mlp": _mlp, "moe": _moe}
