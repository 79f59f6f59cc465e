"""Inkling, for text: attention with learned logits of distances and without rotation, convolutions over keys, values and the
outputs of both parts, shared experts in the router's selection."""

from __future__ import annotations

from typing import Any

from thalweg.checkpoint.config import Config, flag, integer, real
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models.families.common import act, decoder, eps, hidden_size, layer_count, layer_types, mlp, pre_norms
from thalweg.models.spec import (
    DistanceAttention,
    KeptTaps,
    Layer,
    Mixer,
    ModelSpec,
    Names,
    Norm,
    SinkMoE,
    SmoothedFFN,
)

FULL, WINDOW = "hybrid", "hybrid_sliding"
PREFIXES = (
    ("model.llm.embed_norm.", "model.embed_tokens.embed_norm."), ("model.llm.embed.", "model.embed_tokens."),
    ("model.llm.unembed.", "lm_head."), ("model.llm.", "model."), ("model.language_model.", "model."),
)  # fmt: skip
INSIDE = (
    (".attn.", ".self_attn."), (".wq_du.", ".q_proj."), (".wk_dv.", ".k_proj."), (".wv_dv.", ".v_proj."),
    (".wr_du.", ".r_proj."), (".wo_ud.", ".o_proj."), ("_sconv.weight", "_sconv.conv1d.weight"),
    (".mlp_norm.", ".post_attention_layernorm."), (".attn_norm.", ".input_layernorm."), (".w2_md.", ".down_proj."),
    (".mlp.gate.bias", ".mlp.gate.e_score_correction_bias"),
)  # fmt: skip
"""Names of published files -> those of transformers."""
UNREAD = ("model.mtp.", "model.audio.", "model.visual.", "model.audio_tower.", "model.vision_tower.")


def inkling(config: Config) -> ModelSpec:
    """Names and layouts of tensors as transformers has them."""
    return _declare(config, published=False)


def inkling_text(config: Config) -> ModelSpec:
    """With encoders of images and audio, which are left unread, and layouts as in published files."""
    return _declare(config, published=True)


def _declare(config: Config, *, published: bool) -> ModelSpec:
    hidden, count, vocab = hidden_size(config), layer_count(config), integer(config, "vocab_size")
    if not flag(config, "shared_expert_sink", True):
        raise UnsupportedModelError("config.json: shared_expert_sink: this version only supports true")
    taps = _either(config, "conv_kernel_size", "sconv_kernel_size", 4)
    if taps < 2:
        raise CheckpointError(f"config.json: conv_kernel_size: {taps}: a convolution over one token is none")
    local = config.get("local_layer_ids")
    if local is not None and not (isinstance(local, list) and all(type(i) is int for i in local)):
        raise CheckpointError("config.json: local_layer_ids: must be a list of numbers of layers")
    near = [(i + 1) % 6 for i in range(count)] if local is None else [i in local for i in range(count)]
    kinds = layer_types(config, [WINDOW if each else FULL for each in near], known=(FULL, WINDOW))
    mixers = {kind: _mixers(config, kind, hidden, taps) for kind in dict.fromkeys(kinds)}
    parts = {kind: _feed(config, kind, taps, published) for kind in dict.fromkeys(_mlp_types(config, count))}
    norms = pre_norms(config)
    layers = [Layer(mixers[kind], parts[feed], norms) for kind, feed in zip(kinds, _mlp_types(config, count), strict=True)]
    rows = vocab if config.get("unpadded_vocab_size") is None else integer(config, "unpadded_vocab_size", high=vocab)
    return decoder(
        config, layers, embed_norm=Norm("embed_tokens.embed_norm", hidden, eps(config)), tied=False,
        logit_scale=1 / real(config, "logits_mup_width_multiplier", 1e-6, 1e6, default=24.0),
        head_rows=rows if rows < vocab else 0, head_stored=vocab if rows < vocab else 0,
        names=Names(replace=PREFIXES, inside=INSIDE, skip=UNREAD),
    )  # fmt: skip


def _either(config: Config, key: str, other: str, default: int) -> int:
    return integer(config, key, default=integer(config, other, default=default))


def _mixers(config: Config, kind: str, hidden: int, taps: int) -> tuple[Mixer, ...]:
    own, sizes = "swa_" if kind == WINDOW else "", dict[str, Any]()
    for name, (key, full, near) in {
        "heads": ("num_attention_heads", 64, 64), "kv_heads": ("num_key_value_heads", 8, 16),
        "head_dim": ("head_dim", 128, 128),
    }.items():  # fmt: skip
        sizes[name] = integer(config, own + key, default=near if own else full)
    if sizes["heads"] % sizes["kv_heads"]:
        raise CheckpointError(f"config.json: {own}num_attention_heads must be a multiple of {own}num_key_value_heads")
    window = _either(config, "sliding_window_size", "sliding_window", 512) if own else 0
    grows = None
    if not own and config.get("log_scaling_n_floor") is not None:
        grows = real(config, "log_scaling_alpha", -1e3, 1e3, default=0.1), integer(config, "log_scaling_n_floor")
    attend = DistanceAttention(
        **sizes, taps=taps, rank=integer(config, "d_rel", default=16), eps=eps(config), window=window, grows=grows,
        reach=window or integer(config, "rel_extent", default=1024),
    )  # fmt: skip
    return KeptTaps(kv=2 * sizes["kv_heads"] * sizes["head_dim"], hidden=hidden, taps=taps), attend


def _mlp_types(config: Config, count: int) -> list[str]:
    section = config.get("mlp_layer_types")
    if section is None:
        dense = integer(config, "dense_mlp_idx", low=0, high=10_000, default=0)
        return ["dense" if i < dense else "sparse" for i in range(count)]
    if not isinstance(section, list) or len(section) != count or not {*section} <= {"dense", "sparse"}:
        raise CheckpointError(f"config.json: mlp_layer_types: must be a list of {count} names, dense or sparse")
    return section


def _feed(config: Config, kind: str, taps: int, published: bool) -> SmoothedFFN:
    nested = config.get("dense_intermediate_size") is not None
    if kind == "dense":
        inner = integer(config, "dense_intermediate_size" if nested else "intermediate_size", default=24576)
        joined = "w13_dn.weight" if published else ""
        return SmoothedFFN(ffn=mlp(config, inner=inner), taps=taps, scale="mlp.global_scale", joined=joined)
    key = "intermediate_size" if nested else "moe_intermediate_size"
    routed, always = integer(config, "n_routed_experts", default=256), integer(config, "n_shared_experts", default=2)
    top = integer(config, "num_experts_per_tok", high=routed, default=6)
    section: dict[str, Any] = {
        "fused": ("experts.gate_up_proj", "experts.down_proj"),
        "sink_parts": tuple(f"shared_experts.{part}_proj" for part in ("gate", "up", "down")),
    }  # fmt: skip
    if published:
        section = {
            "fused": ("experts.w13_weight", "experts.w2_weight"), "alternate": True,
            "sink_parts": ("shared_experts.shared_w13_weight", "shared_experts.shared_w2_weight"),
        }  # fmt: skip
    moe = SinkMoE(
        experts=routed + always, top_k=top + always, inner=integer(config, key, default=3072), act=act(config), always=always,
        scores="sigmoid", correction="gate.e_score_correction_bias", gain="gate.global_scale",
        scale=real(config, "route_scale", 1e-6, 1e6, default=8.0), **section,
    )  # fmt: skip
    return SmoothedFFN(ffn=moe, taps=taps)
