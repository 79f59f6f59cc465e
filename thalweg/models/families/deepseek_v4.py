"""DeepSeek V4: hyper-connections, compressed attention of three kinds, experts of the first layers selected by token id."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from thalweg.checkpoint.config import Config, flag, integer, name_list, real, text
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models.families.common import act, decoder, eps, hidden_size, layer_count, rope
from thalweg.models.spec import (
    MLP,
    CompressedAttention,
    HyperConnection,
    HyperStreams,
    KeptEntries,
    Layer,
    Mixer,
    ModelSpec,
    MoE,
    Names,
    Norm,
    Norms,
    WindowPooling,
)

WINDOW, SPARSE, HEAVY = "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"
_RATES = {SPARSE: 4, HEAVY: 128}
"""Tokens of an entry, by the type of layer, where the configuration has no `compress_rates`."""
_TYPES = {0: WINDOW, 4: SPARSE, 128: HEAVY}
"""The type of layer by its number in `compress_ratios`."""
_PREFIXES = (
    ("model.embed_tokens.", "embed."), ("lm_head.", "head."), ("model.head.", "head."), ("model.hc_head.hc_", "hc_head_"),
    ("model.", ""),
)  # fmt: skip
"""Names as transformers writes them -> those of the published files, by which formats know quantised layers."""


def deepseek_v4_text(config: Config) -> ModelSpec:
    """With a vision encoder, which is left unread."""
    spec = deepseek_v4(config)
    return replace(spec, names=replace(spec.names, skip=(*spec.names.skip, "vision.", "aligner.", "image_")))


def deepseek_v4(config: Config) -> ModelSpec:
    config = nest_positions(config)
    if text(config, "scoring_func", "sqrtsoftplus") != "sqrtsoftplus" or act(config) != "silu":
        raise UnsupportedModelError("config.json: scoring_func, hidden_act: this family only supports sqrtsoftplus and silu")
    for key in ("attention_bias", "mlp_bias"):
        if flag(config, key, False):
            raise UnsupportedModelError(f"config.json: {key}: this family has no biases")
    hidden, e, count = hidden_size(config), eps(config), layer_count(config)
    streams, hyper = integer(config, "hc_mult", high=64, default=4), real(config, "hc_eps", 0, 1, default=1e-6)
    iters = integer(config, "hc_sinkhorn_iters", high=1000, default=20)
    attend, feed = (
        HyperConnection(streams=streams, iters=iters, eps=e, hyper_eps=hyper, name=f"hc_{part}_") for part in ("attn", "ffn")
    )
    first, second = Norms(mixer=Norm("attn_norm", hidden, e)), Norms(ffn=Norm("ffn_norm", hidden, e))
    mixers, experts = _mixers(config), build_experts(config)
    layers = []
    for kind, moe in zip(_layer_types(config, count), _mlp_types(config, count), strict=True):
        layers += [Layer(mixers[kind], None, first, around=attend), Layer(None, experts[moe], second, around=feed)]
    return decoder(
        config, layers, norm=Norm("norm", hidden, e), numbers=tuple(i // 2 for i in range(2 * count)),
        streams=HyperStreams(count=streams, eps=e, hyper_eps=hyper),
        names=Names(replace=_PREFIXES, inside=((".attn.norm.", ".attn.kv_norm."),), skip=("mtp.",)),
        root="", embed="embed", head="head",
    )  # fmt: skip


def _mixers(config: Config) -> Mapping[str, tuple[Mixer, ...]]:
    """By the type of layer."""
    dim, e = integer(config, "head_dim", high=1 << 16, default=512), eps(config)
    rates = config.get("compress_rates") or {}
    if not isinstance(rates, dict):
        raise CheckpointError(f"config.json: compress_rates: must be an object, not {rates!r:.80}")
    each = {
        kind: integer(config, key, default=integer(rates, kind, where="compress_rates", default=_RATES[kind]))
        for kind, key in ((SPARSE, "compress_rate_csa"), (HEAVY, "compress_rate_hca"))
    }
    common: dict[str, Any] = {
        "heads": integer(config, "num_attention_heads", default=64), "head_dim": dim, "eps": e,
        "q_latent": integer(config, "q_lora_rank", default=1024), "window": integer(config, "sliding_window", default=128),
        "groups": integer(config, "o_groups", default=8), "group_rank": integer(config, "o_lora_rank", default=1024),
    }  # fmt: skip
    if common["heads"] % common["groups"]:
        raise CheckpointError(f"config.json: o_groups ({common['groups']}) must divide num_attention_heads ({common['heads']})")
    main, turning = (
        rope(config, dim, kind=kind, partial=True, interleaved=True, keys=("attention_factor",))
        for kind in ("main", "compress")
    )
    index = integer(config, "index_head_dim", high=1 << 16, default=128)
    if turning.dim > index:
        raise CheckpointError(f"config.json: index_head_dim: {index}, of which {turning.dim} turn")
    mixers: dict[str, tuple[Mixer, ...]] = {WINDOW: (CompressedAttention(**common, rope=main),)}
    for kind, rate in each.items():
        own: dict[str, Any] = {"rate": rate, "index_dim": index} if kind == SPARSE else {"rate": rate}
        chosen: dict[str, Any] = {}
        if kind == SPARSE:
            chosen = {
                "top": integer(config, "index_topk", default=512),
                "index_heads": integer(config, "index_n_heads", default=64),
            }
        mixers[kind] = (
            WindowPooling(**own, dim=dim, eps=e, rope=turning, overlaps=kind == SPARSE),
            KeptEntries(**own, dim=dim),
            CompressedAttention(**common, **own, **chosen, rope=turning),
        )
    return mixers


def build_experts(config: Config) -> Mapping[str, MoE]:
    """By the type of feed-forward part."""
    inner = integer(config, "moe_intermediate_size", default=2048)
    limit = real(config, "swiglu_limit", 1e-3, 1e6, default=10.0)
    names: dict[str, Any] = {"gate": "w1", "up": "w3", "down": "w2"}
    always = integer(config, "n_shared_experts", low=0, high=1 << 10, default=1)
    if always > 1:
        raise UnsupportedModelError("config.json: n_shared_experts: this family has one")
    count = integer(config, "n_routed_experts", high=1 << 16, default=256)
    top = integer(config, "num_experts_per_tok", high=count, default=min(6, count))
    section: dict[str, Any] = {
        "experts": count, "top_k": top, "inner": inner, "clamp": limit, "scores": "sqrtsoftplus", "name": "ffn", **names,
        "renormalise": flag(config, "norm_topk_prob", True),
        "scale": real(config, "routed_scaling_factor", 1e-6, 1e6, default=1.5),
        "shared": MLP(inner=inner, clamp=limit, name="shared_experts", **names) if always else None,
    }  # fmt: skip
    rows = integer(config, "vocab_size")
    return {"moe": MoE(**section, correction="gate.bias"), "hash_moe": MoE(**section, table="gate.tid2eid", table_rows=rows)}


def nest_positions(config: Config) -> Config:
    """The settings of positions by type, as transformers keeps them. Published files have those of compressed layers, without
    their base."""
    section = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(section, dict):
        raise CheckpointError(f"config.json: rope_parameters: must be an object, not {section!r:.80}")
    share = config.get("partial_rotary_factor")
    dim = integer(config, "head_dim", high=1 << 16, default=512)
    if share is None:
        share = integer(config, "qk_rope_head_dim", high=dim, default=max(2, dim // 8)) / dim
    if not any(isinstance(v, dict) for v in section.values()):
        bases = (("main", "rope_theta", 1e4), ("compress", "compress_rope_theta", 1.6e5))
        main, turning = ({"rope_theta": real(config, key, 1e-3, 1e15, default=base)} for _, key, base in bases)
        kind = section.get("rope_type", section.get("type", "default"))
        more = {k: v for k, v in section.items() if k not in ("type", "rope_theta")}
        section = {"main": {"rope_type": "default", **main}, "compress": {**more, "rope_type": kind, **turning}}
    result = {}
    for kind, each in section.items():
        if isinstance(each, dict):
            result[kind] = {"partial_rotary_factor": share, **each}
            if result[kind].get("rope_type") == "yarn":
                result[kind].setdefault("attention_factor", 1.0)
    return {**config, "rope_scaling": None, "rope_parameters": result}


def _layer_types(config: Config, count: int) -> list[str]:
    """`layer_types`, or `compress_ratios` of published files, or two heavily compressed layers and then both kinds in turn."""
    kinds, ratios = name_list(config, "layer_types", (WINDOW, SPARSE, HEAVY), count), config.get("compress_ratios")
    if kinds is not None:
        return kinds
    if ratios is None:
        return ([HEAVY] * 2 + [SPARSE if i % 2 else HEAVY for i in range(count)])[:count]
    if not isinstance(ratios, list) or len(ratios) < count or not all(type(r) is int and r in _TYPES for r in ratios[:count]):
        raise CheckpointError(f"config.json: compress_ratios: must be a list of {count} of {', '.join(map(str, _TYPES))}")
    return [_TYPES[r] for r in ratios[:count]]


def _mlp_types(config: Config, count: int) -> list[str]:
    if (kinds := name_list(config, "mlp_layer_types", ("hash_moe", "moe"), count)) is not None:
        return kinds
    hashed = integer(config, "num_hash_layers", low=0, high=10_000, default=3)
    return ["hash_moe" if i < hashed else "moe" for i in range(count)]
