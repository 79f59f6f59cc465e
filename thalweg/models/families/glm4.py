"""GLM-4 (0414): interleaved RoPE on half of each head, pre- and post-norms, fused gate and up."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, flag, integer
from thalweg.models.families.common import attention, decoder, eps, hidden_size, layer_count, mlp, rope
from thalweg.models.spec import Layer, ModelSpec, Norm, Norms


def glm4(config: Config) -> ModelSpec:
    config = {**config, "rms_norm_eps": eps(config, default=1.5625e-07)}
    hidden, e = hidden_size(config), eps(config)
    head_dim = integer(config, "head_dim", default=128)
    turned = rope({"partial_rotary_factor": 0.5, **config}, head_dim, partial=True, interleaved=True)
    names = ("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm")
    layer = Layer(
        attention(config, head_dim=head_dim, rope=turned, bias=flag(config, "attention_bias", True)),
        mlp(config, fused="gate_up_proj"),
        Norms(*(Norm(name, hidden, e) for name in names)),
    )
    return decoder(config, [layer] * layer_count(config))
