"""DeepSeek V4.1, for text: DeepSeek V4's experts and streams, with weights that each part computes for the next one, compressed
attention with entries that layers share, rounded keys, and embeddings of n-grams in some layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from thalweg.checkpoint.config import ENGRAM_TOKENIZER, Config, flag, integer, real, text
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models.families.common import act, decoder, hidden_size, layer_count, rope
from thalweg.models.families.deepseek_v4 import build_experts, nest_positions
from thalweg.models.spec import (
    CompressedAttention,
    EngramInput,
    HyperConnection,
    HyperStreams,
    Layer,
    Mixer,
    ModelSpec,
    Names,
    Norm,
    Norms,
    SharedAttention,
    SharedEntries,
    WindowPooling,
)

RATIOS, ENTRIES, INDEXES = "compress_ratios", "kv_source_layer_ids", "index_source_layer_ids"
BLOCKS = "candidate_source_layer_id"
FORM = "fp8"
"""How keys of the last tokens are rounded (`ops.round_groups`)."""
YARN = {"type": "yarn", "factor": 16, "original_max_position_embeddings": 65536, "beta_fast": 32, "beta_slow": 1}
"""Positions of layers with entries, where the configuration has none."""
UNREAD = ("mtp.", "vision.", "aligner.", "image_")


def deepseek_v41(config: Config) -> ModelSpec:
    config = _complete(config)
    hidden, e, count = hidden_size(config), config["rms_norm_eps"], layer_count(config)
    sources = _sources(config, count)
    streams, hyper = integer(config, "hc_mult", high=64, default=4), real(config, "hc_eps", 0, 1, default=1e-6)
    section: dict[str, Any] = {
        "streams": streams, "iters": integer(config, "hc_sinkhorn_iters", high=1000, default=20), "eps": e,
        "hyper_eps": hyper, "carried": True,
    }  # fmt: skip
    inputs, moe = _inputs(config, streams, count), build_experts(config)["moe"]
    first, second = Norms(mixer=Norm("attn_norm", hidden, e)), Norms(ffn=Norm("ffn_norm", hidden, e))
    layers = []
    for i in range(count):
        own, mixers = inputs.get(i), _mixers(config, sources, i)
        if own is not None:
            mixers = (own.cache, *mixers)
        attend = HyperConnection(**section, name="hc_attn_", inputs=own)
        layers += [
            Layer(mixers, None, first, around=attend),
            Layer(None, moe, second, around=HyperConnection(**section, name="hc_ffn_")),
        ]
    return decoder(
        config, layers, norm=Norm("norm", hidden, e), numbers=tuple(i // 2 for i in range(2 * count)),
        streams=HyperStreams(count=streams, eps=e, hyper_eps=hyper, head="", carried=True),
        names=Names(replace=(("model.", ""),), skip=(*UNREAD, *(f"layers.{i}.ffn.gate.bias_vl" for i in range(count)))),
        root="", embed="embed", head="head",
    )  # fmt: skip


def _complete(config: Config) -> dict[str, Any]:
    """With the defaults of the family's configuration class."""
    if text(config, "scoring_func", "sqrtsoftplus") != "sqrtsoftplus" or act(config) != "silu":
        raise UnsupportedModelError("config.json: scoring_func, hidden_act: this family only supports sqrtsoftplus and silu")
    if flag(config, "attention_bias", False):
        raise UnsupportedModelError("config.json: attention_bias: this family has no biases")
    if integer(config, "num_key_value_heads", default=1) != 1 or real(config, "gate_temp", 1e-6, 1e6, default=1.0) != 1:
        raise UnsupportedModelError("config.json: num_key_value_heads, gate_temp: this version only supports 1")
    absent = {
        "n_routed_experts": 384, "moe_intermediate_size": 2304, "q_lora_rank": 1280, "index_n_heads": 32,
        "rope_scaling": YARN if config.get("rope_parameters") is None else None,
    }  # fmt: skip
    config = {**config, **{key: value for key, value in absent.items() if config.get(key) is None}}
    return {**nest_positions(config), "rms_norm_eps": real(config, "rms_norm_eps", 0, 1, default=1e-20)}


@dataclass(frozen=True, slots=True)
class _Sources:
    """Which layers compute what others read."""

    ratios: tuple[int, ...]
    """Of each layer: tokens of an entry, 0 where it reads none."""
    entries: frozenset[int]
    """Layers that make entries."""
    indexes: frozenset[int]
    """Layers that select entries."""
    blocks: int
    """The layer that selects blocks of entries, among which later ones select. -1: there is none."""


def _sources(config: Config, count: int) -> _Sources:
    ratios = config.get(RATIOS)
    if ratios is None:
        near = min(2, count)
        pairs = (count - near + 1) // 2
        ratios = [0] * near + [2] * pairs + [1] * (count - near - pairs)
    if not isinstance(ratios, list) or len(ratios) < count or not all(type(r) is int and 0 <= r <= 1024 for r in ratios):
        raise CheckpointError(f"config.json: {RATIOS}: must be a list of at least {count} numbers of tokens")
    ratios = tuple(ratios[:count])
    runs = [i for i in range(count) if ratios[i] and (not i or ratios[i] != ratios[i - 1])]
    entries, indexes = _numbers(config, ENTRIES, runs, count), _numbers(config, INDEXES, runs, count)
    if not entries <= indexes or any(not ratios[i] for i in indexes):
        raise CheckpointError(f"config.json: {INDEXES} must contain {ENTRIES}, and only layers with {RATIOS} above 0")
    last = 0
    for i, ratio in enumerate(ratios):
        last = ratio if i in entries else last
        if ratio and ratio != last:
            raise CheckpointError(f"config.json: {ENTRIES}: layer {i} needs entries of {ratio} tokens of a layer before it")
    blocks = config.get(BLOCKS)
    if blocks is None:
        blocks = max(entries, default=-1)
    if type(blocks) is not int or (0 <= blocks < count and (blocks not in entries or blocks != max(entries))):
        raise UnsupportedModelError(f"config.json: {BLOCKS}: this version only supports the last of {ENTRIES}, or -1")
    return _Sources(ratios, entries, indexes, blocks if blocks < count else -1)


def _numbers(config: Config, key: str, absent: Sequence[int], count: int) -> frozenset[int]:
    """Numbers of layers. Those from `count` on belong to modules that are left unread."""
    section = config.get(key)
    if section is None:
        return frozenset(absent)
    if not isinstance(section, list) or not all(type(i) is int and i >= 0 for i in section):
        raise CheckpointError(f"config.json: {key}: must be a list of numbers of layers")
    return frozenset(i for i in section if i < count)


def _mixers(config: Config, sources: _Sources, number: int) -> tuple[Mixer, ...]:
    dim, e, rate = integer(config, "head_dim", high=1 << 16, default=512), config["rms_norm_eps"], sources.ratios[number]
    index = integer(config, "index_head_dim", high=1 << 16, default=128)
    turned = rope(config, dim, kind="compress" if rate else "main", partial=True, interleaved=True, keys=("attention_factor",))
    common: dict[str, Any] = {
        "heads": integer(config, "num_attention_heads", default=64), "head_dim": dim, "eps": e,
        "q_latent": integer(config, "q_lora_rank"), "window": integer(config, "sliding_window", default=128),
        "groups": integer(config, "o_groups", default=8), "group_rank": integer(config, "o_lora_rank", default=1024),
        "normed": False, "form": FORM, "rope": turned,
    }  # fmt: skip
    if common["heads"] % common["groups"]:
        raise CheckpointError(f"config.json: o_groups ({common['groups']}) must divide num_attention_heads ({common['heads']})")
    if turned.dim > index:
        raise CheckpointError(f"config.json: index_head_dim: {index}, of which {turned.dim} turn")
    if not rate:
        return (CompressedAttention(**common),)
    chosen: dict[str, Any] = {}
    if number in sources.indexes:
        chosen = {
            "top": integer(config, "index_topk", default=512), "index_heads": integer(config, "index_n_heads"),
            "index_dim": index,
        }  # fmt: skip
        if number == sources.blocks:
            chosen["blocks"] = integer(config, "candidate_topk_blocks", default=2048)
        chosen["among"] = 0 <= sources.blocks < number
        if number == sources.blocks or chosen["among"]:
            chosen["block"] = integer(config, "candidate_block_size", default=8)
    attend = SharedAttention(**common, **chosen, rate=rate)
    if number not in sources.entries:
        return (attend,)
    kept = SharedEntries(rate=rate, dim=dim, index_dim=index, eps=e, rope=turned)
    if rate == 1:
        return kept, attend
    return WindowPooling(rate=rate, dim=dim, eps=e, rope=None, biased=False), kept, attend


def _inputs(config: Config, streams: int, count: int) -> dict[int, EngramInput]:
    """By layer."""
    section, rows = config.get("engram_layer_ids") or [], config.get("engram_num_embeddings") or []
    if not isinstance(section, list) or not all(type(i) is int and i >= 0 for i in section) or section != sorted({*section}):
        raise CheckpointError("config.json: engram_layer_ids: must be growing numbers of layers")
    if not isinstance(rows, list) or len(rows) != len(section) or not all(type(n) is int and n > 0 for n in rows):
        raise CheckpointError(
            f"config.json: engram_num_embeddings: must be {len(section)} numbers of rows, as engram_layer_ids"
        )
    vocab = integer(config, "vocab_size")
    result = {
        layer: EngramInput(
            streams=streams, hidden=hidden_size(config), eps=config["rms_norm_eps"], index=index, number=layer, vocab=vocab,
            total=rows[index], tokenizer=config.get(ENGRAM_TOKENIZER) or "",
            dim=integer(config, "engram_head_dim", default=256), heads=integer(config, "engram_n_heads", default=8),
            size=integer(config, "engram_max_ngram_size", low=2, high=16, default=4),
            base=integer(config, "engram_vocab_size", low=2, high=1 << 30, default=16_000_000),
            merged=integer(config, "engram_compressed_vocab_size", default=99_092),
            pad=integer(config, "engram_pad_token_id", low=0, high=vocab - 1, default=2),
        )
        for index, layer in enumerate(section)
        if layer < count
    }  # fmt: skip
    for layer, part in result.items():
        if sum(part.rows) > part.total:
            raise CheckpointError(
                f"config.json: engram_num_embeddings: layer {layer} needs {sum(part.rows)} rows, and has {part.total}"
            )
    return result
