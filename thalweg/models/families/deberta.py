"""DeBERTa 1 to 3 encoders: post-norm layers with disentangled attention (content and relative position). Many rerankers,
zero-shot classifiers and guards of prompts are of this kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from thalweg.checkpoint.config import Config, flag, integer, real, text
from thalweg.errors import UnsupportedModelError
from thalweg.models.families.common import act, classes, hidden_size, layer_count, pooling, token_classes, ungated_mlp
from thalweg.models.spec import DisentangledAttention, Distances, Layer, LayerNorm, LearnedEmbedding, ModelSpec, Names, Norms
from thalweg.models.tail import ACTS, Pooling

FIRST: dict[str, Any] = {"fused": "self.in_proj", "places": ("self.pos_proj", "self.pos_q_proj")}
"""Differences of the first version."""


def deberta(config: Config, first: bool = True) -> ModelSpec:
    return _encoder(config, pooling(config, default="cls"), first, ("pooler.",))


def deberta_classifier(config: Config, first: bool = True) -> ModelSpec:
    name = text(config, "pooler_hidden_act", "gelu")
    if name not in ACTS or config.get("pooler_hidden_size", config["hidden_size"]) != config["hidden_size"]:
        raise UnsupportedModelError(
            f"config.json: pooler_hidden_act: unknown {name!r:.80}, or another size; supported: {', '.join(ACTS)}"
        )
    return _encoder(config, classes(config, dense="pooler.dense", act=name), first)


def deberta_of_tokens(config: Config, first: bool = True) -> ModelSpec:
    return _encoder(config, token_classes(config), first, ("pooler.",))


def deberta_v2(config: Config) -> ModelSpec:
    return deberta(config, first=False)


def deberta_v2_classifier(config: Config) -> ModelSpec:
    return deberta_classifier(config, first=False)


def deberta_v2_of_tokens(config: Config) -> ModelSpec:
    return deberta_of_tokens(config, first=False)


def _encoder(config: Config, tail: Pooling, first: bool, skip: Sequence[str] = ()) -> ModelSpec:
    hidden, heads = hidden_size(config), integer(config, "num_attention_heads")
    eps = real(config, "layer_norm_eps", default=1e-7)
    ways, distances = _ways(config), _distances(config, LayerNorm("encoder.LayerNorm", hidden, eps), first)
    for key, only in (
        ("conv_kernel_size", 0),
        ("embedding_size", hidden),
        ("talking_head", False),
        ("attention_head_size", hidden // heads),
    ):
        if config.get(key, only) not in (only, None):
            raise UnsupportedModelError(f"config.json: {key}: {config[key]!r:.80}: this version only supports {only}")
    layer = Layer(
        DisentangledAttention(
            heads=heads, head_dim=hidden // heads, distances=distances, keys="c2p" in ways, queries="p2c" in ways,
            shared=not first and flag(config, "share_att_key", False), **(FIRST if first else {}),
        ),
        ungated_mlp(config, name="", up="intermediate.dense", down="output.dense", bias=True, act=act(config, default="gelu")),
        Norms(
            mixer_sum=LayerNorm("attention.output.LayerNorm", hidden, eps), ffn_sum=LayerNorm("output.LayerNorm", hidden, eps)
        ),
    )  # fmt: skip
    positions, types = integer(config, "max_position_embeddings", default=512), integer(config, "type_vocab_size", 0, default=0)
    learned = (
        [LearnedEmbedding("embeddings.position_embeddings", positions)] if flag(config, "position_biased_input", True) else []
    )
    learned += [LearnedEmbedding("embeddings.token_type_embeddings", types, by="type")] if types else []
    skip = ("embeddings.position_ids", "lm_predictions.", "mask_predictions.", "cls.", *skip)
    skip += () if any(each.by == "position" for each in learned) else ("embeddings.position_embeddings.",)
    return ModelSpec(
        vocab=integer(config, "vocab_size"), hidden=hidden, layers=(layer,) * layer_count(config), norm=None,
        learned=tuple(learned), distances=distances, embed_norm=LayerNorm("embeddings.LayerNorm", hidden, eps), pooling=tail,
        root="", layer="encoder.layer.{}.", embed="embeddings.word_embeddings",
        names=Names(replace=(("deberta.", ""),), skip=(*skip, *("deberta." + name for name in skip))),
    )  # fmt: skip


def _ways(config: Config) -> set[str]:
    """`pos_att_type`, a list or as "c2p|p2c"."""
    section = config.get("pos_att_type")
    ways = section.lower().split("|") if isinstance(section, str) else section or []
    found = {str(way).strip() for way in ways} if isinstance(ways, list) else {"?"}
    if not found or found - {"c2p", "p2c"} or not flag(config, "relative_attention", False):
        raise UnsupportedModelError(
            f"config.json: pos_att_type: {section!r:.80}: this version serves DeBERTa with relative_attention of c2p, p2c or "
            "both"
        )
    return found


def _distances(config: Config, norm: LayerNorm, first: bool) -> Distances:
    farthest, section = integer(config, "max_relative_positions", -1, 1 << 20, default=-1), text(config, "norm_rel_ebd", "none")
    if farthest < 1:
        farthest = integer(config, "max_position_embeddings", high=1 << 20, default=512)
    buckets = 0 if first else max(0, integer(config, "position_buckets", -1, 1 << 20, default=-1))
    if buckets and not 4 <= buckets < 2 * (farthest - 1):
        raise UnsupportedModelError(f"config.json: position_buckets: {buckets} of distances up to {farthest}")
    normed = not first and "layer_norm" in [each.strip() for each in section.lower().split("|")]
    return Distances("encoder.rel_embeddings", buckets or farthest, farthest, bool(buckets), norm if normed else None)
