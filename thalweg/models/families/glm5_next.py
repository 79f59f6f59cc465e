"""GLM-5 Next, for text and images: hyper-connections, delta nets with per-channel decay, latent attention without rotation that
reads the best pools of tokens on every fourth layer, sigmoid routers with clamped gates. GLM-OCR's encoder, with clamped gates
too."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from thalweg.checkpoint.config import Config, flag, integer, real
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models.families.common import decoder, eps, hidden_size, layer_count, layer_types, mlp
from thalweg.models.families.deepseek_v32 import own_indexers
from thalweg.models.families.mixtures import sigmoid_mixture, sparse
from thalweg.models.families.multimodal import seeing
from thalweg.models.families.towers.glm4v import glm5_next as tower
from thalweg.models.spec import (
    FFN,
    MLP,
    HyperConnection,
    HyperStreams,
    IndexPooling,
    KeptEntries,
    KimiDelta,
    LatentAttention,
    Layer,
    Mixer,
    ModelSpec,
    Norm,
    Norms,
    PooledIndexer,
)

LINEAR, INDEXED = "linear_attention", "indexed_attention"
_INSIDE = (
    (".forget_gate.", "."), (".attn_hc.", ".hc_attn_"), (".ffn_hc.", ".hc_ffn_"),
)  # fmt: skip
"""Names as transformers gives them in memory -> those of published files."""


_LINEAR = {
    "linear_head_dim": "head_dim", "linear_num_heads": "num_heads", "linear_conv_kernel_dim": "short_conv_kernel_size",
    "linear_lower_bound": "gate_lower_bound",
}  # fmt: skip
"""Keys of transformers -> those of `linear_attn_config` in published files."""


def glm5_next(config: Config) -> ModelSpec:
    config = {
        "n_routed_experts": 288, "moe_intermediate_size": 2048, "routed_scaling_factor": 2.5, "intermediate_size": 12_288,
        **config, "rms_norm_eps": eps(config, default=1e-5),
    }  # fmt: skip
    hidden, e, count = hidden_size(config), eps(config), layer_count(config)
    streams, hyper = integer(config, "hc_mult", high=64, default=4), real(config, "hc_eps", 0, 1, default=1e-6)
    iters = integer(config, "hc_sinkhorn_iters", high=1000, default=20)
    attend, feed = (
        HyperConnection(streams=streams, iters=iters, eps=e, hyper_eps=hyper, name=f"hc_{part}_") for part in ("attn", "ffn")
    )
    first, second = Norms(mixer=Norm("input_layernorm", hidden, e)), Norms(ffn=Norm("post_attention_layernorm", hidden, e))
    parts = _feed_forward(config)
    layers = []
    for mixer, mixed in zip(_mixers(config, count), sparse(config, min(3, count)), strict=True):
        layers += [Layer(mixer, None, first, around=attend), Layer(None, parts[mixed], second, around=feed)]
    spec = decoder(
        config, layers, norm=Norm("norm", hidden, e), numbers=tuple(i // 2 for i in range(2 * count)),
        streams=HyperStreams(count=streams, eps=e, hyper_eps=hyper, head=""),
    )  # fmt: skip
    drafts = tuple(f"{root}.layers.{count}." for root in ("model", "model.language_model"))
    return seeing(spec, config, tower, inside=_INSIDE, skip=drafts)


def _mixers(config: Config, count: int) -> list[Mixer | tuple[Mixer, ...]]:
    section = config.get("layer_types")
    if isinstance(section, list):
        config = {**config, "layer_types": [INDEXED if kind == "full_attention" else kind for kind in section]}
    types = layer_types(config, [INDEXED if i % 4 == 3 else LINEAR for i in range(count)], known=(LINEAR, INDEXED))
    linear: Any = config.get("linear_attn_config") or {}
    if not isinstance(linear, dict):
        raise CheckpointError(f"config.json: linear_attn_config: must be an object, not {linear!r:.80}")
    config = {**config, **{ours: linear[theirs] for ours, theirs in _LINEAR.items() if theirs in linear}}
    if linear.get("safe_gate", True) and config.get("linear_lower_bound") is None and linear:
        config["linear_lower_bound"] = -5.0
    floor = config.get("linear_lower_bound", -5.0)
    delta = KimiDelta(
        heads=integer(config, "linear_num_heads", default=64), dim=integer(config, "linear_head_dim", default=128), flat=True,
        kernel=integer(config, "linear_conv_kernel_dim", low=2, high=1 << 16, default=4), eps=eps(config),
        floor=0.0 if floor is None else real(config, "linear_lower_bound", -1e3, -1e-3, default=-5.0),
    )  # fmt: skip
    shared = _latent(config)
    dim, rate = integer(config, "index_head_dim", default=128), integer(config, "index_kpool", low=2, default=16)
    if shared.top % rate:
        raise CheckpointError(f"config.json: index_topk ({shared.top}) must be a multiple of index_kpool ({rate})")
    if not flag(config, "index_kpool_always_select_tail", True):
        raise UnsupportedModelError("config.json: index_kpool_always_select_tail: this version always reads the open pool")
    indexer = PooledIndexer(heads=integer(config, "index_n_heads", default=32), dim=dim, rate=rate)
    own = (IndexPooling(rate=rate, dim=dim), KeptEntries(rate=rate, dim=dim), replace(shared, indexer=indexer))
    full = own_indexers(config)
    first = next((i for i, kind in enumerate(types) if kind == INDEXED), None)
    if first is not None and not full[first]:
        raise CheckpointError("config.json: indexer_types: the first layer with attention has no indices to share")
    return [delta if t == LINEAR else own if has_indexer else shared for t, has_indexer in zip(types, full, strict=True)]


def _latent(config: Config) -> LatentAttention:
    def size(key: str, default: int, low: int = 1) -> int:
        return integer(config, key, low=low, high=1 << 16, default=default)

    return LatentAttention(
        heads=integer(config, "num_attention_heads"), latent=size("kv_lora_rank", 512), rope=None, eps=eps(config),
        nope_dim=size("qk_nope_head_dim", 256), value_dim=size("v_head_dim", 256), still=size("qk_rope_head_dim", 0, low=0),
        q_latent=size("q_lora_rank", 1536), bias=flag(config, "attention_bias", False), top=size("index_topk", 2048),
    )  # fmt: skip


def _feed_forward(config: Config) -> dict[bool, FFN]:
    """With a mixture, or without."""
    limit = real(config, "swiglu_limit", 1e-3, 1e6, default=10.0)
    moe: Any = sigmoid_mixture(config, clamp=limit)
    if isinstance(moe.shared, MLP):
        moe = replace(moe, shared=replace(moe.shared, clamp=limit))
    return {True: moe, False: replace(mlp(config), clamp=limit)}
