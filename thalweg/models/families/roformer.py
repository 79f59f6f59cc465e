"""RoFormer encoder: BERT with rotary positions."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, flag, integer
from thalweg.errors import UnsupportedModelError
from thalweg.models.families.bert import encoder, project_embeddings
from thalweg.models.families.common import classes, head_size, pooling, rope, token_classes
from thalweg.models.spec import Attention, ModelSpec
from thalweg.models.tail import Pooling

UNUSED = ("encoder.embed_positions.", "roformer.encoder.embed_positions.")
"""The table of sines, which some files have."""


def roformer(config: Config) -> ModelSpec:
    return _encoder(config, pooling(config, default="cls"), ("cls.",))


def roformer_classifier(config: Config) -> ModelSpec:
    name = config.get("hidden_act", "gelu")
    if name != "gelu":
        raise UnsupportedModelError(f"config.json: hidden_act: {name!r:.80}: the classifier of this family supports gelu only")
    return _encoder(config, classes(config, dense="classifier.dense", act="gelu", out="classifier.out_proj"))


def roformer_of_tokens(config: Config) -> ModelSpec:
    return _encoder(config, token_classes(config))


def _encoder(config: Config, tail: Pooling, skip: tuple[str, ...] = ()) -> ModelSpec:
    if flag(config, "rotary_value", False):
        raise UnsupportedModelError("config.json: rotary_value: rotary positions of values are not supported")
    spec = encoder(config, tail, prefix="roformer.", skip=(*skip, *UNUSED))
    turns = rope({"rope_theta": 10_000.0, **config}, head_size(config), interleaved=True)
    layer = spec.layers[0]
    assert isinstance(layer.mixer, Attention)
    layers = (replace(layer, mixer=replace(layer.mixer, rope=turns)),) * len(spec.layers)
    spec = replace(spec, layers=layers, learned=tuple(each for each in spec.learned if each.by != "position"))
    width = integer(config, "embedding_size", default=spec.hidden)
    return spec if width == spec.hidden else project_embeddings(config, spec, width, "embeddings_project")
