"""Models that generate, with another tail: what a decoder's last state becomes where no token is to be sampled."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config
from thalweg.errors import UnsupportedModelError
from thalweg.models.families.common import classes, pooling
from thalweg.models.spec import ModelSpec
from thalweg.models.tail import Pooling


def embedder(spec: ModelSpec, config: Config) -> ModelSpec:
    """A vector per sequence: of its last token, unless the files beside the model say otherwise."""
    return _ended(spec, pooling(config, default="last"))


def classifier(spec: ModelSpec, config: Config) -> ModelSpec:
    """A number per class of the last token's state, as transformers' classes for decoders have it."""
    return _ended(spec, classes(config, mode="last", out="score", bias=False))


def _ended(spec: ModelSpec, tail: Pooling) -> ModelSpec:
    """The output matrix is not needed, whether the files have it or not."""
    if spec.sound is not None:
        raise UnsupportedModelError("runner: this model writes down what it hears, and gives no vectors: leave it at auto")
    names = replace(spec.names, skip=(*spec.names.skip, f"{spec.head}."))
    return replace(spec, pooling=tail, tied=False, names=names)
