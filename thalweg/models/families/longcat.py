"""LongCat-Flash: two blocks of latent attention (MLA) and MLP per layer, and a shortcut-connected MoE from the first MLP to
after the second. Some experts are zero-computation (identity)."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, flag, integer, real, text
from thalweg.errors import UnsupportedModelError
from thalweg.models.families.common import act, decoder, eps, hidden_size, layer_count, mlp, pre_norms
from thalweg.models.families.deepseek import latent
from thalweg.models.spec import Layer, ModelSpec, MoE, MTPSpec, Names, Norm, Norms, ShortcutMoE

MODULE = "model.mtp."


def longcat_flash(config: Config) -> ModelSpec:
    if text(config, "zero_expert_type", "identity") != "identity":
        raise UnsupportedModelError("config.json: zero_expert_type: this version's experts without matrices are identity")
    if flag(config, "router_bias", False):
        raise UnsupportedModelError("config.json: router_bias: this version's router of this family has none")
    config = {"rms_norm_eps": 1e-5, "rope_theta": 1e7, "q_lora_rank": 1536, **config}
    hidden, layers, e = hidden_size(config), layer_count(config), eps(config)
    mixer = latent(config, interleaved=True)
    sharper = (hidden / mixer.q_latent) ** 0.5 if flag(config, "mla_scale_q_lora", True) else 1.0
    larger = (hidden / mixer.latent) ** 0.5 if flag(config, "mla_scale_kv_lora", True) else 1.0
    mixer = replace(mixer, scale=mixer.scale * sharper, latent_scale=larger)
    experts = integer(config, "n_routed_experts", default=512)
    zero = integer(config, "zero_expert_num", 0, 1 << 16, default=256)
    moe = MoE(
        experts=experts, zero=zero, act=act(config),
        top_k=integer(config, "num_experts_per_tok", high=experts + zero, default=min(12, experts)),
        inner=integer(config, "moe_intermediate_size", default=2048),
        scale=real(config, "routed_scaling_factor", default=6.0), router="router.classifier",
        correction="router.e_score_correction_bias",
    )  # fmt: skip
    both = [
        Layer(
            replace(mixer, name=f"self_attn.{i}"),
            ShortcutMoE(mlp=mlp(config, name=f"mlps.{i}"), moe=None if i else moe),
            Norms(mixer=Norm(f"input_layernorm.{i}", hidden, e), ffn=Norm(f"post_attention_layernorm.{i}", hidden, e)),
        )
        for i in range(2)
    ]
    spec = decoder(
        config,
        both * layers,
        numbers=tuple(i for i in range(layers) for _ in both),
        names=Names(skip=(MODULE,), experts=experts),
    )
    if not integer(config, "num_nextn_predict_layers", default=1):
        return spec
    block = Layer(mixer, mlp(config, name="transformer_layer.mlp"), pre_norms(config))
    return replace(spec, mtp=_module(spec.vocab, hidden, block, e))


def _module(vocab: int, hidden: int, layer: Layer, eps: float) -> MTPSpec:
    """One block of attention and a plain MLP."""
    at = "layers.0."
    return MTPSpec(
        vocab=vocab, hidden=hidden, layers=(layer,), norm=Norm("norm", hidden, eps),
        token_norm=Norm(f"{at}enorm.m", hidden, eps), hidden_norm=Norm(f"{at}hnorm.m", hidden, eps), proj=f"{at}eh_proj",
        hidden_first=False, root=MODULE, layer="layers.{}.", names=Names(skip=(f"{MODULE}embed_tokens.",)),
    )  # fmt: skip
