"""Generative models with another tail: the use of a decoder's last state where no token is sampled."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, flag, text
from thalweg.errors import CheckpointError, UnsupportedModelError
from thalweg.models.families.common import classes, pooling, token_classes
from thalweg.models.spec import Attention, ModelSpec
from thalweg.models.tail import Pooling

METHODS = ("from_2_way_softmax", "no_post_processing")
"""Uses of the tokens' logits: one number of two, or one each."""


def embedder(spec: ModelSpec, config: Config, default: str = "last") -> ModelSpec:
    """A vector per sequence: of its last token (or by another `default`), unless the model's other files say otherwise."""
    return attach_tail(spec, pooling(config, default=default))


def classifier(spec: ModelSpec, config: Config) -> ModelSpec:
    """A number per class of the last token's state, as transformers' classes for decoders have it. With `classifier_from_token`
    the numbers are logits of these tokens."""
    if config.get("classifier_from_token") is not None:
        return _from_tokens(spec, config)
    return attach_tail(spec, classes(config, mode="last", out="score", bias=False))


def bidirectional(spec: ModelSpec) -> ModelSpec:
    """The same model with bidirectional attention."""
    layers = []
    for layer in spec.layers:
        assert isinstance(layer.mixer, Attention)
        layers.append(replace(layer, mixer=replace(layer.mixer, causal=False)))
    return replace(spec, layers=tuple(layers))


def apply_causality(spec: ModelSpec, config: Config) -> ModelSpec:
    """With `is_causal` false, every layer of a decoder attends in both directions. A window then is the distance to the
    farthest token on either side, as transformers masks it."""
    if flag(config, "is_causal", True) or not spec.causal:
        return spec
    if spec.pooling is None:
        raise UnsupportedModelError(
            "config.json: is_causal: false: a model with bidirectional attention does not generate; --runner pooling serves "
            "its vectors"
        )
    if not all(isinstance(layer.mixer, Attention) for layer in spec.layers):
        raise UnsupportedModelError("config.json: is_causal: false is not supported for this architecture")
    layers = []
    for layer in bidirectional(spec).layers:
        assert isinstance(layer.mixer, Attention)
        window = layer.mixer.window
        layers.append(replace(layer, mixer=replace(layer.mixer, window=window + 1)) if window else layer)
    return replace(spec, layers=tuple(layers))


def of_tokens(spec: ModelSpec, config: Config) -> ModelSpec:
    """A number per class of every token's state."""
    return attach_tail(spec, token_classes(config, mode="last", out="score"))


def _from_tokens(spec: ModelSpec, config: Config) -> ModelSpec:
    """The checkpoint of a decoder that answers yes or no, read as a classifier."""
    ids = config.get("classifier_token_ids")
    if not isinstance(ids, list) or not all(type(i) is int and 0 <= i < spec.vocab for i in ids):
        raise CheckpointError(f"config.json: classifier_from_token: the tokens are not among the {spec.vocab} of the model")
    original = flag(config, "is_original_qwen3_reranker", False)
    method = text(config, "method", METHODS[0] if original else METHODS[1])
    if method not in METHODS:
        raise UnsupportedModelError(f"config.json: method: unknown {method!r:.80}; supported: {', '.join(METHODS)}")
    one = method == METHODS[0]
    if one and len(ids) != 2:
        raise CheckpointError(f"config.json: classifier_from_token: {method} is of two tokens, no and yes, not of {len(ids)}")
    if spec.head_bias or spec.logit_softcap or spec.logit_scale != 1.0:
        raise UnsupportedModelError("config.json: classifier_from_token: scaling, caps or biases of logits are not supported")
    labels = ("LABEL_0",) if one else tuple(map(str, config["classifier_from_token"]))
    tail = classes(
        {**config, "id2label": dict(enumerate(labels))}, mode="last", bias=False, tokens=tuple(ids), vocab=spec.vocab,
        head=f"{spec.root}{spec.embed}.weight" if spec.tied else f"{spec.head}.weight", difference=one,
    )  # fmt: skip
    form = "qwen3-reranker" if spec.vision is None else "qwen3-vl-reranker"
    tail = replace(tail, form=form if original else "")
    return attach_tail(spec, tail) if spec.tied else replace(spec, pooling=tail)


def attach_tail(spec: ModelSpec, tail: Pooling) -> ModelSpec:
    """The model with this tail: the output matrix is not needed, whether the files have it or not."""
    if spec.speech is not None:
        raise UnsupportedModelError("runner: this speech model only writes transcripts, and gives no vectors: leave it at auto")
    if spec.text is not None:
        raise UnsupportedModelError(
            "runner: vectors of this text-to-text model are not implemented: leave runner and convert at auto to generate"
        )
    names = replace(spec.names, skip=(*spec.names.skip, f"{spec.head}."))
    return replace(spec, pooling=tail, tied=False, names=names)
