"""Llama 1 to 3.3 and the checkpoints that share its class. Config: attention_bias covers all four projections."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, flag, text
from thalweg.errors import UnsupportedModelError
from thalweg.models.families.common import classes, layer_count, llama_decoder, mlp
from thalweg.models.families.tails import attach_tail, bidirectional, embedder
from thalweg.models.spec import ModelSpec


def llama(config: Config) -> ModelSpec:
    bias = flag(config, "attention_bias", False)
    inner = mlp(config, bias=flag(config, "mlp_bias", False))
    return llama_decoder(config, (0,) * layer_count(config), inner, bias=bias, out_bias=bias)


def pangu_embedded(config: Config) -> ModelSpec:
    """openPangu-Embedded: `bias` is of attention."""
    return llama({**config, "attention_bias": flag(config, "attention_bias", flag(config, "bias", False))})


def llama_both_ways(config: Config) -> ModelSpec:
    """An embedder with bidirectional attention."""
    return bidirectional(embedder(llama(config), config, default=_mode(config)))


def llama_both_ways_classifier(config: Config) -> ModelSpec:
    """A reranker with bidirectional attention."""
    tail = classes(config, mode=_mode(config), out="score", bias=False)
    return bidirectional(attach_tail(llama(config), replace(tail, form="nemotron-rerank")))


def _mode(config: Config) -> str:
    modes, section = {"avg": "mean", "cls": "cls", "last": "last"}, text(config, "pooling_type", "avg")
    if section not in modes:
        raise UnsupportedModelError(f"config.json: pooling: unknown {section!r:.80}; supported: {', '.join(modes)}")
    return modes[section]
