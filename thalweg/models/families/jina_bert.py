"""Jina's BERT (jina-embeddings-v2, jina-reranker-v1): BERT with symmetric ALiBi (Press et al. 2021, of the distance between two
tokens) and gated feed-forward parts. The second of the authors' two formats (jina-embeddings-v2-base-code) has QK-norm."""

from __future__ import annotations

from dataclasses import replace

from thalweg.checkpoint.config import Config, integer, real, text
from thalweg.errors import UnsupportedModelError
from thalweg.models.families.bert import encoder
from thalweg.models.families.bloom import slopes
from thalweg.models.families.common import act, both_ways, classes, hidden_size, mlp, pooling
from thalweg.models.name_formats import KEY
from thalweg.models.spec import HeadNorm, Layer, LayerNorm, ModelSpec, NestedNorm, Norms
from thalweg.models.tail import Pooling

GATES = {"geglu": "gelu", "reglu": "relu", "swiglu": "silu"}
"""feed_forward_type -> the activation of the gate."""

QK_POST_NORM = "qk-post-norm"
NAME_FORMATS = {".mlp.up_gated_layer.": QK_POST_NORM, ".mlp.gated_layers.": ""}
"""`models.name_formats`: of the authors' two formats."""


def jina_bert(config: Config) -> ModelSpec:
    return _encoder(config, pooling(config, default=text(config, "emb_pooler", "mean")), ("pooler.", "cls."))


def jina_bert_classifier(config: Config) -> ModelSpec:
    return _encoder(config, classes(config, dense="pooler.dense"))


def _encoder(config: Config, tail: Pooling, skip: tuple[str, ...] = ()) -> ModelSpec:
    positions, kind = text(config, "position_embedding_type", "absolute"), text(config, "feed_forward_type", "original")
    if positions != "alibi" or kind not in GATES:
        raise UnsupportedModelError(
            f"config.json: position_embedding_type, feed_forward_type: {positions!r:.80}, {kind!r:.80}: only alibi with "
            f"{', '.join(GATES)} is supported"
        )
    hidden, eps, heads = (
        hidden_size(config),
        real(config, "layer_norm_eps", default=1e-12),
        integer(config, "num_attention_heads"),
    )
    second = _has_second_format(config)
    qk = HeadNorm(eps, whole=True, mean=True, shared=True, q="self.layer_norm_q", k="self.layer_norm_k") if second else None
    names = {"fused": "up_gated_layer", "down": "down_layer"} if second else {"fused": "gated_layers", "down": "wo"}
    first = LayerNorm("attention.output.LayerNorm", hidden, eps)
    layer = Layer(
        both_ways(
            config, bias=True, out_bias=True, name="attention", parts=("self.query", "self.key", "self.value"),
            out="output.dense", slopes=slopes(heads), norm=qk,
        ),
        mlp(config, name="mlp", act=act({"hidden_act": GATES[kind]}), down_bias=True, swapped=second, **names),
        Norms(
            mixer_sum=NestedNorm(first, LayerNorm("layer_norm_1", hidden, eps)) if second else first,
            ffn_sum=LayerNorm("layer_norm_2" if second else "mlp.layernorm", hidden, eps),
        ),
    )  # fmt: skip
    spec = encoder({**config, "position_embedding_type": "absolute"}, tail, prefix="bert.", skip=skip)
    return replace(spec, layers=(layer,) * len(spec.layers), learned=spec.learned[1:])


def _has_second_format(config: Config) -> bool:
    """By the files, or where they are not read, by the repository of its classes, the only hint in config.json."""
    if KEY in config:
        return bool(config[KEY] == QK_POST_NORM)
    classes_of = config.get("auto_map")
    return isinstance(classes_of, dict) and any(QK_POST_NORM in str(name) for name in classes_of.values())
