"""TeleChat 1 and 2: Llama with keys and values of each head in turn in one tensor, biases after attention and MLP, under other
names."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, flag
from thalweg.errors import UnsupportedModelError
from thalweg.models.families.common import attention, decoder, eps, head_size, hidden_size, layer_count, mlp, pre_norms
from thalweg.models.spec import Layer, ModelSpec, Norm, Rows


def telechat(config: Config) -> ModelSpec:
    for key in ("embed_layernorm", "apply_residual_connection_post_layernorm"):
        if flag(config, key, False):
            raise UnsupportedModelError(f"config.json: {key}: this version serves TeleChat without it")
    config, size = {"rms_norm_eps": 1e-5, **config}, head_size(config)
    mixer = attention(
        config, name="self_attention", parts=("query", "key", "value"), out="dense", out_bias=True,
        rows=(None, Rows("key_value", 0, size, 2 * size), Rows("key_value", size, size, 2 * size)),
    )  # fmt: skip
    layer = Layer(mixer, mlp(config, act="silu", down_bias=True), pre_norms(config))
    return decoder(
        config, [layer] * layer_count(config), norm=Norm("ln_f", hidden_size(config), eps(config)), root="transformer.",
        layer="h.{}.", embed="word_embeddings",
    )  # fmt: skip
