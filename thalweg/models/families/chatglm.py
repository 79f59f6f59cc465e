"""ChatGLM 2 and 3, and GLM-4 as first published: GLM-4's layers under other names, fused q, k and v, a RoPE ratio."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, flag, integer, real
from thalweg.errors import UnsupportedModelError
from thalweg.models.families.common import attention, decoder, eps, head_size, hidden_size, layer_count, mlp, rope
from thalweg.models.spec import Layer, ModelSpec, Names, Norm, Norms

ONLY = {
    "rmsnorm": True, "add_bias_linear": False, "apply_residual_connection_post_layernorm": False, "post_layer_norm": True,
    "pre_seq_len": None, "vision_config": None, "interleaved_qkv": False,
}  # fmt: skip
"""Keys of parts with one supported form in this family -> that form."""


def chatglm(config: Config) -> ModelSpec:
    for key, only in ONLY.items():
        if config.get(key, only) not in (only, None):
            raise UnsupportedModelError(
                f"config.json: {key}: {config[key]!r:.80}: this version serves ChatGLM 2 and newer, text"
            )
    hidden, head_dim, e = hidden_size(config), head_size(config), eps(config, default=1e-5)
    if flag(config, "multi_query_attention", False):
        config = {**config, "num_key_value_heads": integer(config, "multi_query_group_num", high=1 << 16, default=1)}
    theta = 10_000.0 * real(config, "rope_ratio", 1e-6, 1e9, default=1.0)
    turned = rope(
        {**config, "rope_theta": theta, "partial_rotary_factor": 0.5}, head_dim, partial=True,
        interleaved=flag(config, "original_rope", True),
    )  # fmt: skip
    layer = Layer(
        attention(
            config, head_dim=head_dim, rope=turned, bias=flag(config, "add_qkv_bias", False), name="self_attention",
            fused="query_key_value", parts=("q", "k", "v"), out="dense",
        ),
        mlp(config, act="silu", fused="dense_h_to_4h", down="dense_4h_to_h"),
        Norms(mixer=Norm("input_layernorm", hidden, e), ffn=Norm("post_attention_layernorm", hidden, e)),
    )  # fmt: skip
    return decoder(
        config, [layer] * layer_count(config), norm=Norm("encoder.final_layernorm", hidden, e), root="transformer.",
        layer="encoder.layers.{}.", embed="embedding.word_embeddings", head="transformer.output_layer",
        names=Names(skip=("transformer.rotary_pos_emb.",)),
    )  # fmt: skip
