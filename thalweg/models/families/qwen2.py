"""Qwen2, Qwen2.5, QwQ: biases on q, k and v, optional sliding windows on some layers."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config
from thalweg.models.families.common import layer_windows, llama_decoder, mlp, token_classes
from thalweg.models.families.tails import attach_tail
from thalweg.models.spec import ModelSpec

STEP_TAG = 151_651
"""<extra_0>: what stands behind each step of a solution."""


def qwen2(config: Config) -> ModelSpec:
    return llama_decoder(config, layer_windows(config), mlp(config), bias=True)


def qwen2_reward(config: Config) -> ModelSpec:
    """A reward for every token, of which the last one's is that of the text."""
    return _rewards(config, ("LABEL_0",))


def qwen2_process_reward(config: Config) -> ModelSpec:
    """At the end of every step of a solution, how likely the step is wrong, and how likely it is right."""
    spec = _rewards(config, ("LABEL_0", "LABEL_1"))
    assert spec.pooling is not None
    if spec.pooling.step_tag is None and spec.vocab > STEP_TAG:
        spec = replace(spec, pooling=replace(spec.pooling, step_tag=STEP_TAG))
    return spec


def _rewards(config: Config, labels: tuple[str, ...]) -> ModelSpec:
    named = {**config, "id2label": dict(enumerate(labels))}
    return attach_tail(qwen2(config), token_classes(named, mode="last", dense="score.0", act="relu", out="score.2"))
