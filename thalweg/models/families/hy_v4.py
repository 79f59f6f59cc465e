"""Hy4, and Hy4-VL with images: hyper-connections that do not mix their streams, gated latent attention (MLA) with sinks and
sparse attention (DSA), sigmoid routers with expert bias and clamped experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from thalweg.checkpoint.config import Config, integer, real
from thalweg.errors import CheckpointError
from thalweg.models.families.common import decoder, eps, hidden_size, layer_count, mlp, rope
from thalweg.models.families.deepseek import latent
from thalweg.models.families.deepseek_v32 import own_indexers
from thalweg.models.families.mixtures import sigmoid_mixture, sparse
from thalweg.models.families.multimodal import is_blind, one_axis, read_sections, seeing
from thalweg.models.families.towers.hunyuan import hy_v4_vl as tower
from thalweg.models.spec import HyperConnection, HyperStreams, Indexer, Layer, ModelSpec, Names, Norm, Norms

_INSIDE = (
    (".mlp.linear_gate.", ".mlp.gate_proj."), (".shared_experts.linear_gate.", ".shared_experts.gate_proj."),
    (".self_attn.gate_proj.", ".self_attn.linear_gate."), (".self_attn.sinks", ".self_attn.learnable_sink_param"),
)  # fmt: skip


def hy_v4(config: Config) -> ModelSpec:
    return _text(config)


def hy_v4_vl(config: Config) -> ModelSpec:
    """Its positions rotate neighbouring values, along three axes."""
    config = {"q_lora_rank": 2048, "moe_intermediate_size": 2048, "index_n_heads": 32, **config}
    config["rms_norm_eps"] = eps(config, default=1e-5)
    turned = rope(one_axis(config), integer(config, "qk_rope_head_dim", default=64), interleaved=True)
    if not is_blind(config):
        turned = replace(turned, sections=read_sections(config, turned.dim, mixed=True, absent=[12, 10, 10]), mixed=True)
    spec = _text(one_axis(config), rope=turned, eps=eps(config))
    inside = (*_INSIDE, (".hc_head.hc_pre.", ".hc_pre.hc_head."))  # as transformers writes it
    skip = (*spec.names.skip, *(("vit.",) if is_blind(config) else ()))
    return seeing(spec, config, tower, replace=(("vit.", "model.vision_tower."),), inside=inside, skip=skip)


def _text(config: Config, **more: Any) -> ModelSpec:
    """more: fields of `spec.LatentAttention`."""
    config = {
        "q_lora_rank": 1536, "qk_nope_head_dim": 192, "v_head_dim": 256, "n_routed_experts": 256, "moe_intermediate_size": 768,
        "routed_scaling_factor": 2.827, "index_n_heads": 16, **config, "rms_norm_eps": eps(config, default=1e-5),
    }  # fmt: skip
    hidden, e, count = hidden_size(config), eps(config), layer_count(config)
    streams, hyper = integer(config, "hc_mult", high=64, default=4), real(config, "hc_eps", 0, 1, default=1e-6)
    magnitude = real(config, "hc_magnitude", 0, 1e6, default=2.0)
    attend, feed = (
        HyperConnection(
            streams=streams, iters=0, eps=e, hyper_eps=hyper, magnitude=magnitude, name=f"hc_pre.hc_{part}_layer.hc_"
        )
        for part in ("attn", "mlp")
    )
    first, second = Norms(mixer=Norm("input_layernorm", hidden, e)), Norms(ffn=Norm("post_attention_layernorm", hidden, e))
    dim = integer(config, "index_head_dim", high=1 << 16, default=128)
    if dim < integer(config, "qk_rope_head_dim", default=64):
        raise CheckpointError(f"config.json: index_head_dim: {dim}, of which qk_rope_head_dim turn")
    turned = more.get("rope")
    indexer = Indexer(
        heads=integer(config, "index_n_heads", high=1 << 16), dim=dim, eps=e, last=True,
        interleaved=turned is not None and turned.interleaved,
    )  # fmt: skip
    shared = latent(
        config, interleaved=False, top=integer(config, "index_topk", default=2048), gate="linear_gate", gate_values=True,
        sinks="learnable_sink_param", **more,
    )  # fmt: skip
    own = replace(shared, indexer=indexer)
    moe = replace(
        sigmoid_mixture(config, clamp=max(0.0, real(config, "swiglu_limit", -1e6, 1e6, default=10.0))),
        fused=("experts.gate_up_proj", "experts.down_proj"),
    )
    plain, layers = mlp(config), []
    if config.get("indexer_types") is None:
        config = {**config, "indexer_types": ["full" if i == 0 or (i - 1) % 4 == 0 else "shared" for i in range(count)]}
    for has_indexer, mixed in zip(own_indexers(config), sparse(config, min(1, count)), strict=True):
        mixer, part = own if has_indexer else shared, moe if mixed else plain
        layers += [Layer(mixer, None, first, around=attend), Layer(None, part, second, around=feed)]
    return decoder(
        config, layers, norm=Norm("norm", hidden, e), numbers=tuple(i // 2 for i in range(2 * count)),
        streams=HyperStreams(count=streams, eps=e, hyper_eps=hyper, head="hc_pre.hc_head.hc_head_"),
        names=Names(inside=_INSIDE, skip=tuple(f"model.layers.{count + i}." for i in range(4))),
    )  # fmt: skip
