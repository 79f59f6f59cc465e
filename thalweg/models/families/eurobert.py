"""EuroBERT: Llama with bidirectional attention, as an encoder and as a classifier."""

from __future__ import annotations

from thalweg.checkpoint.config import Config, text
from thalweg.errors import UnsupportedModelError
from thalweg.models.families.common import classes, token_classes
from thalweg.models.families.llama import llama
from thalweg.models.families.tails import attach_tail, bidirectional, embedder
from thalweg.models.spec import ModelSpec

MODES = {"bos": "cls", "mean": "mean"}


def eurobert(config: Config) -> ModelSpec:
    return bidirectional(embedder(_llama(config), config, default="mean"))


def eurobert_classifier(config: Config) -> ModelSpec:
    mode = text(config, "classifier_pooling", "late")
    if mode not in MODES:
        raise UnsupportedModelError(
            f"config.json: classifier_pooling: {mode!r:.80}: this version's classifiers pool before their head: "
            f"{', '.join(MODES)}"
        )
    return bidirectional(attach_tail(_llama(config), classes(config, mode=MODES[mode], dense="dense", act="gelu")))


def eurobert_of_tokens(config: Config) -> ModelSpec:
    return bidirectional(attach_tail(_llama(config), token_classes(config)))


def _llama(config: Config) -> ModelSpec:
    return llama({"rms_norm_eps": 1e-5, "max_position_embeddings": 8192, **config})
