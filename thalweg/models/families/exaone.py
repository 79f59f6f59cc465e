"""EXAONE 3 and 3.5, EXAONE Deep: Llama under other names."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, real
from thalweg.models.families.common import act, attention, decoder, hidden_size, layer_count, mlp
from thalweg.models.spec import Layer, ModelSpec, Norm, Norms


def exaone(config: Config) -> ModelSpec:
    hidden, e = hidden_size(config), real(config, "layer_norm_epsilon", default=1e-5)
    layer = Layer(
        attention(config, name="attn.attention", out="out_proj"),
        mlp(config, act=act(config, "activation_function"), gate="c_fc_0", up="c_fc_1", down="c_proj"),
        Norms(mixer=Norm("ln_1", hidden, e), ffn=Norm("ln_2", hidden, e)),
    )
    return decoder(
        config, [layer] * layer_count(config), norm=Norm("ln_f", hidden, e), root="transformer.", layer="h.{}.", embed="wte"
    )
