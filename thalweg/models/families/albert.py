"""ALBERT encoder: BERT whose layers share their weights, with narrow embeddings."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, integer, real
from thalweg.errors import UnsupportedModelError
from thalweg.models.families.bert import encoder, project_embeddings
from thalweg.models.families.common import act, both_ways, classes, hidden_size, pooling, token_classes, ungated_mlp
from thalweg.models.spec import Layer, LayerNorm, ModelSpec, Norms
from thalweg.models.tail import Pooling


def albert(config: Config) -> ModelSpec:
    return _encoder(config, pooling(config, default="cls"), ("pooler.", "predictions.", "sop_classifier."))


def albert_classifier(config: Config) -> ModelSpec:
    return _encoder(config, classes(config, dense="pooler"))


def albert_of_tokens(config: Config) -> ModelSpec:
    return _encoder(config, token_classes(config), ("pooler.",))


def _encoder(config: Config, tail: Pooling, skip: tuple[str, ...] = ()) -> ModelSpec:
    inside, groups = (integer(config, key, default=1) for key in ("inner_group_num", "num_hidden_groups"))
    if inside != 1:
        raise UnsupportedModelError(f"config.json: inner_group_num: {inside}: only 1 is supported")
    hidden, eps = hidden_size(config), real(config, "layer_norm_eps", default=1e-12)
    layer = Layer(
        both_ways(
            config, bias=True, out_bias=True, name="attention", parts=("query", "key", "value"), out="dense",
        ),
        ungated_mlp(config, name="", up="ffn", down="ffn_output", bias=True, act=act(config, default="gelu_new")),
        Norms(
            mixer_sum=LayerNorm("attention.LayerNorm", hidden, eps), ffn_sum=LayerNorm("full_layer_layer_norm", hidden, eps)
        ),
    )  # fmt: skip
    spec = encoder(config, tail, prefix="albert.", skip=skip)
    count = len(spec.layers)
    spec = replace(
        spec, layers=(layer,) * count, layer="encoder.albert_layer_groups.{}.albert_layers.0.",
        numbers=tuple(i * groups // count for i in range(count)),
    )  # fmt: skip
    return project_embeddings(
        config, spec, integer(config, "embedding_size", default=128), "encoder.embedding_hidden_mapping_in"
    )
