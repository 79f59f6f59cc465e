"""Alice AI: Kimi Linear's delta nets and Qwen3-Next's gated attention, attention over depth instead of a residual stream,
sigmoid routers with expert bias, a shared expert with a gate."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, flag, integer
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models.families.common import decoder, eps, head_size, hidden_size, layer_count, layer_types
from thalweg.models.families.qwen3_next import build_attention, build_mixture
from thalweg.models.spec import DepthAttention, KimiDelta, Layer, Mixer, ModelSpec, Names, Norm, Norms, ResidualBlocks

FULL, LINEAR = "full_attention", "linear_attention"
_INSIDE = (
    (".attn_res_norm_weight", ".attn_res_norm.weight"), (".mlp_res_norm_weight", ".mlp_res_norm.weight"),
    ("attnres_final.res_norm_weight", "attnres_final.res_norm.weight"), (".linear_attn.a_log_bias", ".linear_attn.A_log"),
)  # fmt: skip
"""Names of published files -> those of similar families."""


def alice_ai(config: Config) -> ModelSpec:
    if flag(config, "attention_bias", False):
        raise UnsupportedModelError("config.json: attention_bias: this family has attention without biases")
    hidden, e, count = hidden_size(config), eps(config), layer_count(config)
    config = {"head_dim": head_size(config), "partial_rotary_factor": 1.0, **config}
    run = integer(config, "block_attn_res_block_size")
    kinds = layer_types(config, [], known=(FULL, LINEAR))
    mixers: dict[str, Mixer] = {LINEAR: _delta(config), FULL: build_attention(config)}
    moe = replace(build_mixture(config), scores="sigmoid", correction="gate.e_score_correction_bias")
    first, second = (Norm(name, hidden, e, offset=1.0) for name in ("input_layernorm", "post_attention_layernorm"))
    feed, layers = DepthAttention(eps=e, name="mlp_res"), []
    for i, kind in enumerate(kinds):
        attend = DepthAttention(eps=e, name="attn_res" if i else "", begins=i % run == 0)
        layers += [
            Layer(mixers[kind], None, Norms(mixer=first), around=attend),
            Layer(None, moe, Norms(ffn=second), around=feed),
        ]
    return decoder(
        config, layers, norm=Norm("norm", hidden, e, offset=1.0), numbers=tuple(i // 2 for i in range(2 * count)),
        streams=ResidualBlocks(count=-(-count // run) + 1, eps=e, name="attnres_final.res"),
        names=Names(inside=_INSIDE, skip=("model.mtp.", "mtp.")),
    )  # fmt: skip


def _delta(config: Config) -> KimiDelta:
    def size(name: str) -> int:
        return integer(config, f"linear_{name}", high=1 << 16)

    heads, dim = size("num_key_heads"), size("key_head_dim")
    if (size("num_value_heads"), size("value_head_dim")) != (heads, dim):
        raise CheckpointError(
            "config.json: linear_num_value_heads, linear_value_head_dim: must be those of keys, linear_num_key_heads and "
            "linear_key_head_dim"
        )
    return KimiDelta(
        heads=heads, dim=dim, kernel=integer(config, "linear_conv_kernel_dim", low=2, high=1 << 16), eps=eps(config), flat=True,
        name="linear_attn",
    )  # fmt: skip
