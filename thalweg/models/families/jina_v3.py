"""Jina Embeddings v3, XLM-RoBERTa with RoPE, and what its authors' format holds under XLM-RoBERTa's names: v3 with one low-rank
adapter per task, and jina-reranker-v2, whose positions are learned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from thalweg.checkpoint.config import Config, integer, text
from thalweg.errors import CheckpointError
from thalweg.models.families import roberta
from thalweg.models.families.common import act, classes, pooling, ungated_mlp
from thalweg.models.families.nomic_bert import rotary_encoder
from thalweg.models.spec import Attention, LearnedEmbedding, ModelSpec, Names, StackedAdapter
from thalweg.models.tail import Pooling

ORIGINAL = ".parametrizations.weight.original"
"""The end of the name of a matrix that the adapters change."""
USUAL = "text-matching"
"""The default task."""


def jina_v3(config: Config) -> ModelSpec:
    return jina_roberta(config, pooling(config, default="mean"), skip=("pooler.", "lm_head."))


def jina_v3_classifier(config: Config) -> ModelSpec:
    return jina_roberta(config, classes(config, dense="classifier.dense", out="classifier.out_proj"))


def xlm_roberta(config: Config) -> ModelSpec:
    """The encoder in transformers' format, or in Jina's."""
    return _with_adapters(config, _at_learned_positions(config, jina_v3)) if _is_jina(config) else roberta.roberta(config)


def xlm_roberta_classifier(config: Config) -> ModelSpec:
    if _is_jina(config):
        return _at_learned_positions(config, jina_v3_classifier)
    return roberta.roberta_classifier(config)


def jina_roberta(config: Config, tail: Pooling, skip: tuple[str, ...] = ()) -> ModelSpec:
    inner = ungated_mlp(config, bias=True, act=act(config, default="gelu"))
    parts = ("mixer", "Wqkv", "out_proj", "norm1", "norm2")
    return rotary_encoder(
        config, tail, inner, parts, base=20_000.0, bias=True, types=1, layer="encoder.layers.{}.", norm="emb_ln",
        names=Names(replace=(("roberta.", ""),), skip=(*skip, *(f"roberta.{name}" for name in skip))),
    )  # fmt: skip


def _is_jina(config: Config) -> bool:
    return "use_flash_attn" in config or text(config, "position_embedding_type", "absolute") == "rotary"


def _at_learned_positions(config: Config, family: Callable[[Config], ModelSpec]) -> ModelSpec:
    """Jina's encoder, with learned positions where config.json says that positions are absolute."""
    spec = family(config)
    if text(config, "position_embedding_type", "absolute") == "rotary":
        return spec
    rows, layers = integer(config, "max_position_embeddings", high=1 << 24), []
    for layer in spec.layers:
        assert isinstance(layer.mixer, Attention)
        layers.append(replace(layer, mixer=replace(layer.mixer, rope=None)))
    positions = LearnedEmbedding("embeddings.position_embeddings", rows, first=roberta.first_position(config))
    return replace(spec, layers=tuple(layers), learned=(positions, *spec.learned))


def _with_adapters(config: Config, spec: ModelSpec) -> ModelSpec:
    """With the adapter of `jina_task` among `lora_adaptations`."""
    tasks = config.get("lora_adaptations")
    if tasks is None:
        return spec
    if not isinstance(tasks, list) or not tasks or not all(isinstance(task, str) for task in tasks):
        raise CheckpointError("config.json: lora_adaptations: must be a list of names")
    task = config.get("jina_task", USUAL if USUAL in tasks else tasks[-1])
    if task not in tasks:
        raise CheckpointError(f"config.json: jina_task: {task!r:.80} is not one of lora_adaptations, {tasks!r:.200}")
    rank, alpha = integer(config, "lora_rank", default=4), integer(config, "lora_alpha", default=1)
    adapter = StackedAdapter(tasks.index(task), len(tasks), rank, alpha / rank)
    names = replace(spec.names, inside=((ORIGINAL, ".weight"),))
    return replace(spec, adapter=adapter, names=names)
