"""Qwen4-Exp, for text, images and videos: gated residual streams, gated delta nets, attention to selected blocks of keys on
every fourth layer, embeddings of n-grams in some layers, Qwen 3.5's mixtures and its encoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from thalweg.checkpoint.config import Config, integer, text
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models.families.common import decoder, eps, hidden_size, layer_count, layer_types
from thalweg.models.families.multimodal import is_blind, one_axis, read_sections, seeing
from thalweg.models.families.nextn import MODULE
from thalweg.models.families.qwen3_next import build_attention, build_delta, build_mixture
from thalweg.models.families.towers.qwen_vl import qwen3_5 as tower
from thalweg.models.spec import (
    DeltaNet,
    GatedResidual,
    GatedStreams,
    KeptEntries,
    Layer,
    Mixer,
    ModelSpec,
    NGramInput,
    Norms,
    PooledKeys,
    PooledSparseAttention,
)

LINEAR, INDEXED = "linear_attention", "indexed_attention"


def qwen4_exp(config: Config) -> ModelSpec:
    e, count = eps(config), layer_count(config)
    streams = integer(config, "hc_count", low=2, high=64, default=4)
    common: dict[str, Any] = {"streams": streams, "rank": integer(config, "hc_lowrank", default=320), "eps": e}
    moe = build_mixture(config)
    every = integer(config, "full_attention_interval", default=4)
    section = config.get("layer_types")
    if isinstance(section, list):  # published files name the attention as Qwen3.5's do
        config = {**config, "layer_types": [INDEXED if kind == "full_attention" else kind for kind in section]}
    absent = [LINEAR if (i + 1) % every else INDEXED for i in range(count)]
    types = layer_types(config, absent, known=(LINEAR, INDEXED))
    inputs = _inputs(config, streams, types)
    attention, delta = _attention(config), _delta(config)
    layers = []
    for i, kind in enumerate(types):
        mixers: tuple[Mixer, ...] = (delta,) if kind == LINEAR else attention
        own = inputs.get(i)
        if own is not None:
            mixers = (*own.caches, *mixers)
        attend = GatedResidual(**common, name="attn_hyper_connection", inputs=own)
        feed = GatedResidual(**common, name="mlp_hyper_connection")
        mixer = mixers if len(mixers) > 1 else mixers[0]
        layers += [Layer(mixer, None, Norms(), around=attend), Layer(None, moe, Norms(), around=feed)]
    unread = tuple(
        f"model.layers.{i}.ple.ple_embedding.{name}"
        for i in inputs
        for name in ("layer_multipliers", "ngram_heads_offsets", "ngram_heads_vocab_sizes")
    )  # computed from the configuration
    spec = decoder(
        config, layers, norm=None, numbers=tuple(i // 2 for i in range(2 * count)),
        streams=GatedStreams(count=streams, rank=common["rank"], eps=e),
    )  # fmt: skip
    return seeing(spec, config, tower, skip=(MODULE, *unread))


def _delta(config: Config) -> DeltaNet:
    gate = text(config, "output_gate_type", "silu") if config.get("output_gate_type") else "silu"
    if gate not in ("silu", "sigmoid"):
        raise UnsupportedModelError(f"config.json: output_gate_type: this version has silu and sigmoid, not {gate!r:.80}")
    return replace(build_delta(config, grouped=False), gate=gate)


def _attention(config: Config) -> tuple[Mixer, ...]:
    full = build_attention({"partial_rotary_factor": 1.0, **one_axis(config)})
    keys = ("indexer_n_heads", "indexer_kv_heads", "indexer_head_dim", "indexer_budget", "indexer_compress_ratio")
    heads, kv, dim, budget, rate = (integer(config, key, high=1 << 24) for key in keys)
    if kv != 1 or budget % rate:
        raise CheckpointError("config.json: indexer_kv_heads must be 1, and indexer_compress_ratio divide indexer_budget")
    assert full.rope is not None
    if not is_blind(config):
        sections = read_sections(config, full.rope.dim, mixed=True, absent=[11, 11, 10])
        full = replace(full, rope=replace(full.rope, sections=sections, mixed=True))
    assert full.rope is not None
    if full.rope.dim > dim:
        raise CheckpointError(f"config.json: indexer_head_dim: {dim}, of which {full.rope.dim} turn")
    fields = ("heads", "kv_heads", "head_dim", "rope", "norm", "gated", "bias", "out_bias")
    return (
        PooledKeys(rate=rate, dim=dim, heads=heads, eps=eps(config), rope=full.rope),
        KeptEntries(rate=rate, dim=dim),
        PooledSparseAttention(
            **{f: getattr(full, f) for f in fields}, block=rate, top=budget, index_heads=heads, index_dim=dim
        ),
    )


def _inputs(config: Config, streams: int, types: Sequence[str]) -> dict[int, NGramInput]:
    """By layer. `ple_layer_ids` counts them from 1."""
    section: Any = config.get("ple_layer_ids") or []
    if not isinstance(section, list) or not all(isinstance(i, int) and 1 <= i <= len(types) for i in section):
        raise CheckpointError(f"config.json: ple_layer_ids: must be numbers of layers from 1 to {len(types)}")
    if any(types[i - 1] != LINEAR for i in section):
        raise CheckpointError(f"config.json: ple_layer_ids: only layers of type {LINEAR} may have such inputs")
    if not section:
        return {}
    size, heads = integer(config, "ngram_size", low=2, high=16, default=3), integer(config, "heads_per_ngram", default=8)
    hidden, ends = hidden_size(config), config.get("eos_token_id")
    dim = integer(config, "ple_embed_dim", default=hidden) if config.get("ple_embed_dim") else hidden
    if dim % ((size - 1) * heads):
        raise CheckpointError("config.json: ple_embed_dim must be a multiple of (ngram_size - 1) * heads_per_ngram")
    end = ends[0] if isinstance(ends, list) and ends else ends
    if type(end) is not int:
        raise CheckpointError("config.json: eos_token_id: must be a number where ple_layer_ids has layers")
    return {
        layer - 1: NGramInput(
            streams=streams, hidden=hidden, dim=dim, size=size, heads=heads, index=index, end=end, eps=eps(config),
            base=integer(config, "ngram_vocab_size_base", default=20_000_000),
            seed=integer(config, "seed", low=0, default=1234),
            divisor=integer(config, "make_ngram_vocab_size_divisible_by", default=128),
            parts=integer(config, "split_ngram_parts", high=1 << 16, default=512), vocab=integer(config, "vocab_size"),
            taps=integer(config, "ple_conv_kernel_size", default=4),
        )
        for index, layer in enumerate(sorted({*section}))
    }  # fmt: skip
