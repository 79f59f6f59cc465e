"""Muse Glimmer, for text: gated attention with unweighted QK-norm, sliding windows with RoPE on three of four layers and NoPE
on the fourth, normed embeddings, capped logits."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, flag, integer, real
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models.families.common import (
    ACTIVATIONS,
    attention,
    decoder,
    eps,
    hidden_size,
    layer_count,
    layer_types,
    mlp,
    rope,
)
from thalweg.models.families.common import act as read_act
from thalweg.models.families.multimodal import blind
from thalweg.models.spec import Attention, HeadNorm, Layer, ModelSpec, Norm, Norms


def muse_glimmer(config: Config) -> ModelSpec:
    if flag(config, "attention_bias", False):
        raise UnsupportedModelError("config.json: attention_bias: this family has attention without biases")
    config = {"sliding_window": 2048, **config, "rms_norm_eps": eps(config, default=1e-5)}
    hidden, e, post = hidden_size(config), eps(config), real(config, "post_norm_eps", 0, 1, default=1e-8)
    norms = Norms(
        mixer=Norm("input_layernorm", hidden, e, offset=1.0),
        mixer_out=Norm("post_attention_layernorm", hidden, post, offset=1.0),
        ffn=Norm("pre_feedforward_layernorm", hidden, e, offset=1.0),
        ffn_out=Norm("post_feedforward_layernorm", hidden, post, offset=1.0),
    )
    inner = mlp(config, act=read_act(config, "hidden_activation", "silu", ACTIVATIONS))
    spec = decoder(
        config, [Layer(mixer, inner, norms) for mixer in mixers(config)], tied=flag(config, "tie_word_embeddings", False),
        embed_norm=Norm("embed_norm", hidden, e, weight=False),
        logit_scale=real(config, "output_multiplier", 1e-6, 1e6, default=0.19611613513818404),
        logit_softcap=real(config, "final_logit_softcapping", 1e-6, 1e6, default=20.0),
    )  # fmt: skip
    return blind(spec, "vision_adapter.", "vision_projection.")


def mixers(config: Config) -> list[Attention]:
    count, head_dim = layer_count(config), integer(config, "head_dim", default=128)
    absent = ["sliding_attention" if (count - 1 - i) % 4 else "full_attention" for i in range(count)]
    turned = config.get("layer_rope_theta")
    if turned is None:
        turned = [(count - 1 - i) % 4 for i in range(count)]
    if not isinstance(turned, list) or len(turned) != count:
        raise CheckpointError(f"config.json: layer_rope_theta: must be a list of {count} numbers, one per layer")
    local = attention(
        config, head_dim=head_dim, rope=rope(config, head_dim), gate="gate_proj", norm=HeadNorm(eps(config), weight=False),
        scale=real(config, "qk_scale_factor", 1e-6, 1e6, default=3.87) * head_dim**-0.5,
        window=integer(config, "sliding_window"),
    )  # fmt: skip
    return [
        replace(local, rope=local.rope if theta else None, window=local.window if kind == "sliding_attention" else 0)
        for kind, theta in zip(layer_types(config, absent), turned, strict=True)
    ]
