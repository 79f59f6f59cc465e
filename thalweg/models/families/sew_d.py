"""SEW-D: SEW with the attention of DeBERTa, and a CTC head."""

from __future__ import annotations

from dataclasses import fields, replace

from thalweg.checkpoint.config import Config, flag, integer, real, text
from thalweg.errors import UnsupportedModelError
from thalweg.models.families import wav2vec
from thalweg.models.spec import DisentangledClipSpec, ModelSpec, Names, Wav2VecSpec

INSIDE = (
    ("encoder.encoder.", "encoder."), ("encoder.layer.", "encoder.layers."),
    *((f"attention.self.{name}_proj.", f"attention.{name[0]}_proj.") for name in ("query", "key", "value")),
    ("attention.output.dense.", "attention.out_proj."), ("attention.output.LayerNorm.", "layer_norm."),
    ("intermediate.dense.", "feed_forward.intermediate_dense."), (".output.LayerNorm.", ".final_layer_norm."),
    (".output.dense.", ".feed_forward.output_dense."),
)  # fmt: skip
"""Parts of names, as wav2vec 2.0 has them."""
BOTH = ("p2c", "c2p")
"""Terms of scores with distances."""
LIKE = {"gelu_python": "gelu"}
"""Activations that differ from others by rounding only."""


def sew_d(config: Config) -> ModelSpec:
    for key, wanted in (("share_att_key", True), ("relative_attention", True)):
        if flag(config, key, wanted) is not wanted:
            raise UnsupportedModelError(f"config.json: {key}: only true is supported")
    if set(config.get("pos_att_type", BOTH) or ()) != set(BOTH):
        raise UnsupportedModelError("config.json: pos_att_type: only p2c and c2p together are supported")
    if text(config, "norm_rel_ebd", "layer_norm").strip().lower() != "layer_norm":
        raise UnsupportedModelError("config.json: norm_rel_ebd: only layer_norm is supported")
    if config.get("conv_kernel_size"):
        raise UnsupportedModelError("config.json: conv_kernel_size: a convolution behind the first layer is not supported")
    kind = text(config, "hidden_act", "gelu")
    result = wav2vec.sew(
        {**config, "hidden_act": LIKE.get(kind, kind), "layer_norm_eps": real(config, "layer_norm_eps", default=1e-7)}
    )
    old = result.audio
    assert isinstance(old, Wav2VecSpec)
    longest = integer(config, "max_relative_positions", low=-1, high=1 << 20, default=-1)
    longest = longest if longest >= 1 else integer(config, "max_position_embeddings", low=2, high=1 << 20, default=512)
    buckets = max(0, integer(config, "position_buckets", low=-1, high=1 << 16, default=256))
    eps = real(config, "feature_layer_norm_eps", 0, 1, default=1e-5)
    kept = {field.name: getattr(old, field.name) for field in fields(Wav2VecSpec)} | {
        "root": "sew_d.", "samples": replace(old.samples, eps=eps),
    }  # fmt: skip
    encoder = DisentangledClipSpec(**kept, places_reach=buckets or longest, buckets_each=buckets, longest=longest)
    skip = tuple(name.replace("sew.", "sew_d.") for name in result.names.skip)
    return replace(result, audio=encoder, names=Names(skip=skip, inside=(*INSIDE, *result.names.inside)))
