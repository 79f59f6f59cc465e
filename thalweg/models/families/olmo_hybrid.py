"""OLMo hybrid: pre-norm gated delta nets with negative eigenvalues, post-norm OLMo 3 attention on every fourth layer, NoPE
unless the configuration has RoPE."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, flag, integer
from thalweg.errors import CheckpointError
from thalweg.models.families.common import act, attention, decoder, eps, hidden_size, layer_count, layer_types, mlp
from thalweg.models.spec import DeltaNet, HeadNorm, Layer, ModelSpec, Names, Norm, Norms


def olmo_hybrid(config: Config) -> ModelSpec:
    hidden, e, bias = hidden_size(config), eps(config), flag(config, "attention_bias", False)
    absent = ["linear_attention" if (i + 1) % 4 else "full_attention" for i in range(layer_count(config))]
    types = layer_types(config, absent, known=("full_attention", "linear_attention"))
    turned = attention(config, bias=bias, out_bias=bias, norm=HeadNorm(e, whole=True))
    inner = mlp(config)
    kinds = {
        "linear_attention": Layer(
            _delta(config), inner,
            Norms(mixer=Norm("attention_layer_norm", hidden, e), ffn=Norm("feedforward_layer_norm", hidden, e)),
        ),
        "full_attention": Layer(
            turned if _turns(config) else replace(turned, rope=None), inner,
            Norms(mixer_out=Norm("post_attention_layernorm", hidden, e), ffn_out=Norm("post_feedforward_layernorm", hidden, e)),
        ),
    }  # fmt: skip
    return decoder(config, [kinds[kind] for kind in types], names=Names(replace=tuple(
        (f"model.layers.{i}.feedforward_layer_norm.", f"model.layers.{i}.post_attention_layernorm.")
        for i, kind in enumerate(types) if kind == "full_attention"  # as transformers 5 writes them
    )))  # fmt: skip


def _delta(config: Config) -> DeltaNet:
    heads = integer(config, "num_attention_heads")
    keys = integer(config, "linear_num_key_heads", high=1 << 16, default=heads)
    values = integer(config, "linear_num_value_heads", high=1 << 16, default=heads)
    if values % keys:
        raise CheckpointError(
            f"config.json: linear_num_value_heads ({values}) must be a multiple of linear_num_key_heads ({keys})"
        )
    key_dim = integer(config, "linear_key_head_dim", high=1 << 16, default=max(1, int(0.75 * hidden_size(config) / keys)))
    return DeltaNet(
        key_heads=keys, value_heads=values, key_dim=key_dim,
        value_dim=integer(config, "linear_value_head_dim", high=1 << 16, default=2 * key_dim),
        kernel=integer(config, "linear_conv_kernel_dim", default=4), eps=1e-5, act=act(config), apart=True,
        most=2.0 if flag(config, "linear_allow_neg_eigval", True) else 1.0,
    )  # fmt: skip


def _turns(config: Config) -> bool:
    """A null means NoPE. An absent base is the class's default."""
    section = config.get("rope_parameters")
    return not (isinstance(section, dict) and section.get("rope_theta", 0) is None)
