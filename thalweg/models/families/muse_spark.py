"""Muse Spark, for text: Muse Glimmer's attention with normed heads, learned weights of the residual stream, sigmoid routers
with expert bias, experts of projected and normed inputs."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, integer, real
from thalweg.models.families.common import act, decoder, eps, hidden_size, layer_count, mlp
from thalweg.models.families.mixtures import sparse
from thalweg.models.families.multimodal import blind
from thalweg.models.families.muse import mixers
from thalweg.models.spec import Layer, ModelSpec, MoE, Norm, Norms, ResidualGate, ScaledNorm

GATES = ("post_attention_residual_gate", "post_feedforward_residual_gate")


def muse_spark(config: Config) -> ModelSpec:
    config = {
        "sliding_window": 2048, "head_dim": 64, "qk_scale_factor": 5.4730064863875, "output_multiplier": 0.1767766952966369,
        **config, "rms_norm_eps": eps(config, default=1e-5),
    }  # fmt: skip
    hidden, e, post = hidden_size(config), eps(config), real(config, "post_norm_eps", 0, 1, default=1e-8)
    temperature = real(config, "residual_gate_temperature", 1e-6, 1e6, default=0.3)
    attend, feed = (ResidualGate(size=hidden, temperature=temperature, name=name) for name in GATES)
    first = Norms(
        mixer=Norm("input_layernorm", hidden, e, offset=1.0),
        mixer_out=Norm("post_attention_layernorm", hidden, post, weight=False),
    )
    second = Norms(
        ffn=Norm("pre_feedforward_layernorm", hidden, e, offset=1.0),
        ffn_out=ScaledNorm("post_feedforward_layernorm", hidden, post),
    )
    count, plain, moe, layers = layer_count(config), mlp(config), _experts(config, post), []
    for mixer, mixed in zip(mixers(config), sparse(config, 0), strict=True):
        layers.append(Layer(replace(mixer, out_eps=e), None, first, around=attend))
        layers.append(Layer(None, moe if mixed else plain, second, around=feed))
    spec = decoder(
        config, layers, numbers=tuple(i // 2 for i in range(2 * count)),
        embed_norm=Norm("embed_norm", hidden, e, weight=False),
        logit_scale=real(config, "output_multiplier", 1e-6, 1e6),
        logit_softcap=real(config, "final_logit_softcapping", 1e-6, 1e6, default=20.0),
    )  # fmt: skip
    return blind(spec, "vision_adapter.", "vision_projection.", "audio_tower.")


def _experts(config: Config, post: float) -> MoE:
    experts, width = integer(config, "num_local_experts", default=256), integer(config, "moe_hidden_size", default=4096)
    return MoE(
        experts=experts, top_k=integer(config, "num_experts_per_tok", high=experts, default=min(8, experts)),
        inner=integer(config, "moe_intermediate_size", default=4096), act=act(config), scores="sigmoid", renormalise=True,
        scale=real(config, "routed_scaling_factor", 1e-6, 1e6, default=1.0),
        logit_scale=real(config, "output_multiplier", 1e-6, 1e6), correction="gate.e_score_correction_bias",
        fused=("experts.gate_up_proj", "experts.down_proj"), latent=width,
        latents=("pre_expert_proj", "post_expert_proj"),
        latent_norm=Norm("pre_expert_norm", width, eps(config), offset=1.0),
        result_norm=ScaledNorm("experts.post_expert_norm", width, post),
    )  # fmt: skip
