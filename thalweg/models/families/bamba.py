"""Bamba: Mamba-2 layers, and attention with half-rotary RoPE on the layers that the configuration names."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, flag
from thalweg.errors import CheckpointError
from thalweg.models.families.common import attention, decoder, eps, head_size, hidden_size, layer_count, mlp, rope
from thalweg.models.families.mamba2 import hybrid
from thalweg.models.spec import Layer, ModelSpec, Norm, Norms


def bamba(config: Config) -> ModelSpec:
    config = {"partial_rotary_factor": 0.5, **config, "rms_norm_eps": eps(config, default=1e-5)}
    hidden, e, head_dim, bias = hidden_size(config), eps(config), head_size(config), flag(config, "attention_bias", False)
    heads = attention(config, head_dim=head_dim, rope=rope(config, head_dim, partial=True), bias=bias, out_bias=bias)
    scan, inner = hybrid(config), mlp(config, bias=flag(config, "mlp_bias", False), name="feed_forward")
    norms = Norms(mixer=Norm("input_layernorm", hidden, e), ffn=Norm("pre_ff_layernorm", hidden, e))
    attends = _indices(config)
    layers = [Layer(heads if i in attends else scan, inner, norms) for i in range(layer_count(config))]
    return decoder(config, layers, norm=Norm("final_layernorm", hidden, e))


def _indices(config: Config) -> frozenset[int]:
    section = config.get("attn_layer_indices") or []
    if not isinstance(section, list) or not all(isinstance(i, int) and 0 <= i < layer_count(config) for i in section):
        raise CheckpointError("config.json: attn_layer_indices: must be a list of layer indices")
    return frozenset(section)
