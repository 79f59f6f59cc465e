"""StarCoder 2: layer norms, biases, ungated MLPs, an optional sliding window."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, flag, integer, real
from thalweg.models.families.common import UNGATED, act, attention, decoder, hidden_size, layer_count, ungated_mlp
from thalweg.models.spec import Layer, LayerNorm, ModelSpec, Norms


def starcoder2(config: Config) -> ModelSpec:
    hidden, e, bias = hidden_size(config), real(config, "norm_epsilon", 0, 1, default=1e-5), flag(config, "use_bias", True)
    layer = Layer(
        attention(config, bias=bias, out_bias=bias, window=integer(config, "sliding_window", default=0)),
        ungated_mlp(config, act=act(config, default="gelu_pytorch_tanh", known=UNGATED), bias=bias, up="c_fc", down="c_proj"),
        Norms(mixer=LayerNorm("input_layernorm", hidden, e), ffn=LayerNorm("post_attention_layernorm", hidden, e)),
    )
    return decoder(
        config, [layer] * layer_count(config), norm=LayerNorm("norm", hidden, e),
        tied=flag(config, "tie_word_embeddings", True),
    )  # fmt: skip
