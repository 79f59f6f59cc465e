"""Text-to-text models that classify: BART, mBART, PLBart, MVP, T5, mT5 and UMT5. The decoder reads the source again, and a head
reads its state at the last end token."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, integer
from thalweg.models.families.bart import bart, mbart, mvp, plbart
from thalweg.models.families.common import classes
from thalweg.models.families.t5 import t5, umt5
from thalweg.models.spec import ModelSpec
from thalweg.models.tail import ShiftedSource

UNREAD = ("lm_head.", "final_logits_bias")
"""Of a model that generates."""


def bart_classifier(config: Config) -> ModelSpec:
    return _classifier(bart(config), config, _start(config, 2))


def mbart_classifier(config: Config) -> ModelSpec:
    return _classifier(mbart(config), config, None)


def plbart_classifier(config: Config) -> ModelSpec:
    return _classifier(plbart(config), config, None)


def mvp_classifier(config: Config) -> ModelSpec:
    return _classifier(mvp(config), config, _start(config, 2))


def t5_classifier(config: Config) -> ModelSpec:
    return _classifier(_inside(t5(config)), config, _start(config, None), end=1)


def umt5_classifier(config: Config) -> ModelSpec:
    return _classifier(_inside(umt5(config)), config, _start(config, 0), end=1)


def _classifier(spec: ModelSpec, config: Config, start: int | None, end: int = 2) -> ModelSpec:
    """start: the decoder's first token. None: the source's last. end: default of `eos_token_id`."""
    last = spec.vocab - 1
    source = ShiftedSource(start=start, end=integer(config, "eos_token_id", 0, last, default=end))
    tail = classes(config, mode="last", dense="classification_head.dense", out="classification_head.out_proj")
    names = replace(spec.names, skip=(*spec.names.skip, *UNREAD))
    return replace(spec, pooling=replace(tail, source=source), tied=False, logit_bias="", names=names)


def _start(config: Config, default: int | None) -> int:
    return integer(config, "decoder_start_token_id", 0, integer(config, "vocab_size") - 1, default=default)


def _inside(spec: ModelSpec) -> ModelSpec:
    """T5's classes keep the two sides in a part `transformer`."""
    return replace(spec, names=replace(spec.names, replace=(("transformer.", ""), *spec.names.replace)))
